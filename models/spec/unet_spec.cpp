#include "models/spec/unet_spec.h"

#include <algorithm>
#include <cmath>

#include "models/spec/sd3_spec.h"

namespace troupe::spec {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 16;
constexpr std::int64_t kMaxLayers = 64;
constexpr std::size_t kMaxLevels = 8;

/// One number for all levels, or one for each.
std::vector<std::int64_t> per_level(const ConfigReader& config, const char* key,
                                    std::int64_t fallback, std::int64_t max, std::size_t levels) {
  if (!config.has_value(key)) {
    config.harmless({key});
    return std::vector<std::int64_t>(levels, fallback);
  }
  if (!config.raw(key).is_array()) {
    return std::vector<std::int64_t>(levels, config.integer(key, 1, max));
  }
  const auto values = config.integers(key);
  if (values.size() != levels) {
    config.refuse(key,
                  "must have one entry for each of block_out_channels, " + std::to_string(levels));
  }
  if (std::ranges::any_of(values, [&](auto v) { return v < 1 || v > max; })) {
    config.refuse(key, "must be from 1 to " + std::to_string(max));
  }
  return values;
}

/// Whether each block attends.
std::vector<bool> attending(const ConfigReader& config, const char* key, const std::string& way,
                            std::size_t levels) {
  const auto types = config.texts(key);
  if (types.size() != levels) {
    config.refuse(key,
                  "must have one entry for each of block_out_channels, " + std::to_string(levels));
  }
  std::vector<bool> result;
  for (const std::string& type : types) {
    const bool cross = type == "CrossAttn" + way + "Block2D";
    if (!cross && type != way + "Block2D") {
      config.refuse(key,
                    "is not supported (only " + way + "Block2D and CrossAttn" + way + "Block2D)");
    }
    result.push_back(cross);
  }
  return result;
}

void only_defaults(const ConfigReader& config) {
  for (const char* key : {"center_input_sample", "only_cross_attention", "dual_cross_attention",
                          "resnet_skip_time_act", "class_embeddings_concat"}) {
    if (config.has_value(key)) config.only(key, false);
    config.harmless({key});
  }
  for (const char* key :
       {"num_attention_heads", "reverse_transformer_layers_per_block", "encoder_hid_dim",
        "encoder_hid_dim_type", "class_embed_type", "num_class_embeds", "time_embedding_dim",
        "time_embedding_act_fn", "timestep_post_act", "time_cond_proj_dim", "cross_attention_norm",
        "mid_block_only_cross_attention"}) {
    if (config.has_value(key)) config.refuse(key, "is not supported");
    config.harmless({key});
  }
  config.only("act_fn", "silu");
  config.only("downsample_padding", 1);
  config.only("mid_block_scale_factor", 1);
  config.only("resnet_time_scale_shift", "default");
  config.only("resnet_out_scale_factor", 1.0);
  config.only("time_embedding_type", "positional");
  config.only("conv_in_kernel", 3);
  config.only("conv_out_kernel", 3);
  config.only("attention_type", "default");
  config.only("mid_block_type", "UNetMidBlock2DCrossAttn");
  // Scores are computed in float32 in any case.
  config.harmless({"upcast_attention", "dropout", "addition_embed_type_num_heads"});
}

/// Walks through the model and notes its tensors, the layers that look beyond their rows, and how
/// many weights a position of the latents meets.
class UNetWalk {
 public:
  explicit UNetWalk(const UNetSpec& spec) : spec_(spec) { walk(); }

  std::vector<ExpectedTensor> tensors;
  std::vector<UNetSite> sites;
  std::vector<std::int64_t> text_attentions;
  double weights = 0;
  double text_weights = 0;
  /// Of one attention over all positions of the latents that costs what all of them do.
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
      const std::string block = "down_blocks." + std::to_string(l) + ".";
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
      const std::string block = "up_blocks." + std::to_string(b) + ".";
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

  /// Of side 3.
  void convolution(const std::string& name, std::int64_t in, std::int64_t out, int from, int to) {
    tensors.push_back({name + ".weight", {out, in, 3, 3}});
    tensors.push_back({name + ".bias", {out}});
    sites.push_back({Kind::conv, from, in});
    weights += static_cast<double>(9 * in * out) * share_of(to);
  }
  void linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias = true) {
    tensors.push_back({name + ".weight", {out, in}});
    if (bias) tensors.push_back({name + ".bias", {out}});
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
    resnet(block + "resnets." + std::to_string(i), in, out, level);
    if (transformers > 0) {
      transformer(block + "attentions." + std::to_string(i), out, transformers, level);
    }
  }
  void resnet(const std::string& name, std::int64_t in, std::int64_t out, int level) {
    norm(name + ".norm1", in, level);
    convolution(name + ".conv1", in, out, level, level);
    linear(name + ".time_emb_proj", spec_.time_embed_dim(), out);
    norm(name + ".norm2", out, level);
    convolution(name + ".conv2", out, out, level, level);
    if (in == out) return;
    tensors.push_back({name + ".conv_shortcut.weight", {out, in, 1, 1}});
    tensors.push_back({name + ".conv_shortcut.bias", {out}});
    weights += static_cast<double>(in * out) * share_of(level);
  }
  void transformer(const std::string& name, std::int64_t width, std::int64_t blocks, int level) {
    const auto projection = [&](const std::string& end) {
      std::vector<std::int64_t> shape = {width, width};
      if (!spec_.use_linear_projection) shape.insert(shape.end(), {1, 1});
      tensors.push_back({name + end + ".weight", shape});
      tensors.push_back({name + end + ".bias", {width}});
    };
    norm(name + ".norm", width, level);
    projection(".proj_in");
    const std::int64_t text = spec_.cross_attention_dim;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const std::string block = name + ".transformer_blocks." + std::to_string(b) + ".";
      for (const char* norm : {"norm1", "norm2", "norm3"})
        affine(block + norm, width);
      for (const std::string attention : {"attn1.", "attn2."}) {
        const std::int64_t source = attention == "attn1." ? width : text;
        linear(block + attention + "to_q", width, width, false);
        linear(block + attention + "to_k", source, width, false);
        linear(block + attention + "to_v", source, width, false);
        linear(block + attention + "to_out.0", width, width);
      }
      linear(block + "ff.net.0.proj", width, 8 * width);
      linear(block + "ff.net.2", 4 * width, width);
      sites.push_back({Kind::attention, level, width});
      text_attentions.push_back(width);
    }
    projection(".proj_out");
    const auto squares = static_cast<double>(width * width);
    const auto count = static_cast<double>(blocks);
    weights += (18 * count + 2) * squares * share_of(level);
    text_weights += count * static_cast<double>(2 * text * width);
    attention_width += count * static_cast<double>(width) * share_of(2 * level);
  }

  const UNetSpec& spec_;
};

}  // namespace

UNetSpec read_unet_spec(const ConfigReader& config) {
  UNetSpec spec;
  if (config.has("_class_name")) config.only("_class_name", "UNet2DConditionModel");
  const auto widths = config.integers("block_out_channels");
  const std::size_t count = widths.size();
  if (count < 1 || count > kMaxLevels) {
    config.refuse("block_out_channels", "must have 1 to " + std::to_string(kMaxLevels) + " levels");
  }
  spec.in_channels = config.integer_or("in_channels", 4, 1, kMaxWidth);
  spec.out_channels = config.integer_or("out_channels", 4, 1, kMaxWidth);
  spec.sample_size = config.optional_integer("sample_size", 1, kMaxWidth).value_or(64);
  const auto layers = per_level(config, "layers_per_block", 2, kMaxLayers, count);
  // Named for a width, but diffusers takes it for the number of heads.
  const auto heads = per_level(config, "attention_head_dim", 8, kMaxWidth, count);
  const auto transformers = per_level(config, "transformer_layers_per_block", 1, kMaxLayers, count);
  const auto down = attending(config, "down_block_types", "Down", count);
  const auto up = attending(config, "up_block_types", "Up", count);
  spec.norm_num_groups = config.integer_or("norm_num_groups", 32, 1, kMaxWidth);
  spec.norm_eps = config.number_or("norm_eps", 1e-5);
  for (std::size_t l = 0; l < count; ++l) {
    if (widths[l] < 1 || widths[l] > kMaxWidth || widths[l] % spec.norm_num_groups != 0) {
      config.refuse("block_out_channels", "must be multiples of norm_num_groups, " +
                                              std::to_string(spec.norm_num_groups));
    }
    const bool up_attends = up[count - 1 - l];
    spec.levels.push_back({widths[l], layers[l], heads[l], down[l] ? transformers[l] : 0,
                           up_attends ? transformers[l] : 0});
    if ((down[l] || up_attends || l + 1 == count) && widths[l] % heads[l] != 0) {
      config.refuse("attention_head_dim", "must divide block_out_channels");
    }
  }
  spec.mid_transformers = transformers.back();
  spec.mid_heads = heads.back();
  if (widths.front() % 2 != 0) config.refuse("block_out_channels", "must begin with an even one");
  spec.cross_attention_dim = config.integer_or("cross_attention_dim", 1280, 1, kMaxWidth);
  spec.flip_sin_to_cos = config.boolean_or("flip_sin_to_cos", true);
  spec.freq_shift = config.integer_or("freq_shift", 0, 0, 1);
  spec.use_linear_projection = config.optional_boolean("use_linear_projection").value_or(false);
  if (config.has_value("addition_embed_type")) {
    config.only("addition_embed_type", "text_time");
    spec.addition_time_embed_dim = config.integer("addition_time_embed_dim", 2, kMaxWidth);
    spec.projection_class_embeddings_input_dim =
        config.integer("projection_class_embeddings_input_dim", 1, kMaxWidth);
    if (spec.addition_time_embed_dim % 2 != 0) {
      config.refuse("addition_time_embed_dim", "must be even");
    }
    if (spec.pooled_width() < 1) {
      config.refuse("projection_class_embeddings_input_dim",
                    "must be more than six of addition_time_embed_dim: sizes, and pooled text");
    }
  } else {
    config.harmless({"addition_embed_type", "addition_time_embed_dim",
                     "projection_class_embeddings_input_dim"});
  }
  only_defaults(config);
  config.finish();
  if (!(spec.norm_eps > 0 && spec.norm_eps < 1)) {
    config.refuse("norm_eps", "must be between 0 and 1");
  }
  return spec;
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
  facts.blocks = {{.weights = walk.weights, .caption_weights = walk.text_weights}};
  return facts;
}

std::vector<PlannedTensor> planned_tensors(const UNetSpec& spec) {
  std::vector<PlannedTensor> planned;
  for (auto& tensor : expected_tensors(spec))
    planned.push_back({.tensor = std::move(tensor), .held = Held::block, .block = 0});
  return planned;
}

bool is_ignorable_tensor(const UNetSpec&, std::string_view) {
  return false;
}

}  // namespace troupe::spec
