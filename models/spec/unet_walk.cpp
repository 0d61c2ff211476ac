#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "models/spec/sd3_spec.h"
#include "models/spec/unet_spec.h"

// Layers of a U-Net of a spec, in order.
namespace troupe::spec {
namespace {

/// Elementwise work of a residual block, in widths: two norms with their activations, the time, the
/// sum.
constexpr double kElementwiseIn = 4, kElementwiseOut = 9;
/// Elementwise work of a transformer block, in widths: three norms, three sums, copies of heads,
/// the gated activation.
constexpr double kElementwisePerTransformer = 33;

/// Walks through the model and notes its tensors, the layers that look beyond their rows, and how
/// many weights a position of the latents meets.
class UNetWalk {
 public:
  explicit UNetWalk(const UNetSpec& spec) : work(spec.levels.size()), spec_(spec) { walk(); }

  std::vector<ExpectedTensor> tensors;
  std::vector<std::size_t> products;  // of tokens: which of the tensors are their weights
  std::vector<UNetSite> sites;
  std::vector<std::int64_t> text_attentions;
  std::vector<UNetWork> work;  // by level
  double text_weights = 0;
  /// Width of one attention over all positions of the latents that costs as much as all attentions
  /// of the model.
  double attention_width = 0;

 private:
  using Kind = UNetSite::Kind;

  void walk() {
    const auto& levels = spec_.levels;
    const std::int64_t time = spec_.time_embed_dim();
    const std::int64_t first = levels.front().channels;
    convolution("conv_in", spec_.in_channels, first, 0, 0);
    linear("time_embedding.linear_1", first, time);
    linear("time_embedding.linear_2", time, time);
    if (spec_.addition_time_embed_dim > 0) {
      linear("add_embedding.linear_1", spec_.projection_class_embeddings_input_dim, time);
      linear("add_embedding.linear_2", time, time);
    }
    std::int64_t in = first;
    const int last = static_cast<int>(levels.size()) - 1;
    for (int l = 0; l <= last; ++l) {
      const std::string block = fmt::format("down_blocks.{}.", l);
      const auto& level = levels[l];
      for (std::int64_t i = 0; i < level.layers; ++i) {
        layer(block, i, i == 0 ? in : level.channels, level.channels, level.down_transformers, l);
      }
      in = level.channels;
      if (l < last) convolution(block + "downsamplers.0.conv", in, in, l, l + 1);
    }
    resnet("mid_block.resnets.0", in, in, last);
    transformer("mid_block.attentions.0", in, spec_.mid_transformers, last);
    resnet("mid_block.resnets.1", in, in, last);
    for (int b = 0; b <= last; ++b) {
      const int l = last - b;
      const std::string block = fmt::format("up_blocks.{}.", b);
      const std::int64_t out = levels[l].channels;
      const std::int64_t skip = levels[l == 0 ? 0 : l - 1].channels;
      for (std::int64_t i = 0; i <= levels[l].layers; ++i) {
        const std::int64_t joined = i == levels[l].layers ? skip : out;
        layer(block, i, (i == 0 ? in : out) + joined, out, levels[l].up_transformers, l);
      }
      in = out;
      if (l > 0) convolution(block + "upsamplers.0.conv", in, in, l, l - 1);
    }
    norm("conv_norm_out", in, 0);
    convolution("conv_out", in, spec_.out_channels, 0, 0);
  }

  static double share_of(int level) { return std::pow(0.25, level); }

  /// Adds a convolution of side 3.
  void convolution(const std::string& name, std::int64_t in, std::int64_t out, int from, int to) {
    tensors.push_back({name + ".weight", {out, in, 3, 3}});
    tensors.push_back({name + ".bias", {out}});
    sites.push_back({Kind::conv, from, in});
    work[to].weights += static_cast<double>(9 * in * out);
  }
  void linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias = true) {
    tensors.push_back({name + ".weight", {out, in}});
    if (bias) tensors.push_back({name + ".bias", {out}});
  }
  void product(const std::string& name, std::int64_t in, std::int64_t out, bool bias = true) {
    products.push_back(tensors.size());
    linear(name, in, out, bias);
  }
  void affine(const std::string& name, std::int64_t width) {
    tensors.push_back({name + ".weight", {width}});
    tensors.push_back({name + ".bias", {width}});
  }
  void norm(const std::string& name, std::int64_t width, int level) {
    affine(name, width);
    sites.push_back({Kind::norm, level, spec_.norm_num_groups});
  }
  void layer(const std::string& block, std::int64_t i, std::int64_t in, std::int64_t out,
             std::int64_t transformers, int level) {
    resnet(fmt::format("{}resnets.{}", block, i), in, out, level);
    if (transformers > 0) {
      transformer(fmt::format("{}attentions.{}", block, i), out, transformers, level);
    }
  }
  void resnet(const std::string& name, std::int64_t in, std::int64_t out, int level) {
    norm(name + ".norm1", in, level);
    convolution(name + ".conv1", in, out, level, level);
    linear(name + ".time_emb_proj", spec_.time_embed_dim(), out);
    norm(name + ".norm2", out, level);
    convolution(name + ".conv2", out, out, level, level);
    work[level].elementwise +=
        kElementwiseIn * static_cast<double>(in) + kElementwiseOut * static_cast<double>(out);
    if (in == out) return;
    tensors.push_back({name + ".conv_shortcut.weight", {out, in, 1, 1}});
    tensors.push_back({name + ".conv_shortcut.bias", {out}});
    work[level].weights += static_cast<double>(in * out);
  }
  void transformer(const std::string& name, std::int64_t width, std::int64_t blocks, int level) {
    const auto projection = [&](const std::string& end) {
      std::vector<std::int64_t> shape = {width, width};
      if (!spec_.use_linear_projection) shape.insert(shape.end(), {1, 1});
      products.push_back(tensors.size());
      tensors.push_back({name + end + ".weight", shape});
      tensors.push_back({name + end + ".bias", {width}});
    };
    norm(name + ".norm", width, level);
    projection(".proj_in");
    const std::int64_t text = spec_.cross_attention_dim;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::string block = fmt::format("{}.transformer_blocks.{}.", name, b);
      for (const char* norm : {"norm1", "norm2", "norm3"})
        affine(block + norm, width);
      for (const std::string attention : {"attn1.", "attn2."}) {
        const std::int64_t source = attention == "attn1." ? width : text;
        product(block + attention + "to_q", width, width, false);
        product(block + attention + "to_k", source, width, false);
        product(block + attention + "to_v", source, width, false);
        product(block + attention + "to_out.0", width, width);
      }
      product(block + "ff.net.0.proj", width, 8 * width);
      product(block + "ff.net.2", 4 * width, width);
      sites.push_back({Kind::attention, level, width});
      text_attentions.push_back(width);
    }
    projection(".proj_out");
    const auto squares = static_cast<double>(width * width);
    const auto count = static_cast<double>(blocks);
    work[level].weights += (18 * count + 2) * squares;
    work[level].attentions += static_cast<int>(blocks);
    work[level].elementwise += kElementwisePerTransformer * count * static_cast<double>(width);
    text_weights += count * static_cast<double>(2 * text * width);
    attention_width += count * static_cast<double>(width) * share_of(2 * level);
  }

  const UNetSpec& spec_;
};

}  // namespace

std::vector<UNetWork> work_of(const UNetSpec& spec) {
  auto work = UNetWalk(spec).work;
  for (std::size_t level = 0; level < work.size(); ++level)
    work[level].channels = spec.levels[level].channels;
  return work;
}

std::vector<ExpectedTensor> expected_tensors(const UNetSpec& spec) {
  return UNetWalk(spec).tensors;
}

std::vector<UNetSite> sites_of(const UNetSpec& spec) {
  return UNetWalk(spec).sites;
}

std::vector<std::int64_t> text_attentions(const UNetSpec& spec) {
  return UNetWalk(spec).text_attentions;
}

TransformerFacts facts_of(const UNetSpec& spec) {
  const UNetWalk walk(spec);
  TransformerFacts facts;
  facts.num_layers = 1;
  facts.num_attention_heads = 1;
  facts.attention_head_dim = std::max<std::int64_t>(1, std::llround(walk.attention_width));
  facts.in_channels = spec.in_channels;
  facts.out_channels = spec.out_channels;
  facts.patch_size = 1;
  facts.sample_size = spec.sample_size;
  facts.caption_width = spec.cross_attention_dim;
  facts.pooled_width = spec.pooled_width();
  facts.fixed_text_tokens = kClipTokens;
  double weights = 0;
  for (std::size_t level = 0; level < walk.work.size(); ++level)
    weights += walk.work[level].weights * std::pow(0.25, level);
  facts.blocks = {{.weights = weights, .caption_weights = walk.text_weights}};
  return facts;
}

std::vector<PlannedTensor> planned_tensors(const UNetSpec& spec) {
  UNetWalk walk(spec);
  std::vector<PlannedTensor> planned;
  for (auto& tensor : walk.tensors)
    planned.push_back({.tensor = std::move(tensor), .held = Held::block, .block = 0});
  for (const auto product : walk.products)
    planned[product].scales = {{planned[product].tensor.shape.front(), 0}};
  return planned;
}

}  // namespace troupe::spec
