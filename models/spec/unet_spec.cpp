#include "models/spec/unet_spec.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"
#include "models/spec/sd3_spec.h"

namespace troupe::spec {
namespace {

constexpr std::int64_t kMaxLayers = 64;

/// Reads one number for all levels, or one for each.
std::vector<std::int64_t> per_level(const ConfigReader& config, const char* key,
                                    std::int64_t fallback, std::int64_t max, std::size_t levels,
                                    std::int64_t min = 1) {
  if (!config.has_value(key)) {
    config.harmless({key});
    return std::vector<std::int64_t>(levels, fallback);
  }
  if (!config.raw(key).is_array()) {
    return std::vector<std::int64_t>(levels, config.integer(key, min, max));
  }
  const auto values = config.integers(key);
  if (values.size() != levels) {
    config.refuse(key,
                  fmt::format("must have one entry for each of block_out_channels, {}", levels));
  }
  if (std::ranges::any_of(values, [&](auto v) { return v < min || v > max; })) {
    config.refuse(key, fmt::format("must be from {} to {}", min, max));
  }
  return values;
}

/// Returns for each block whether it has attention.
std::vector<bool> attending(const ConfigReader& config, const char* key, const std::string& way,
                            std::size_t levels) {
  const auto types = config.texts(key);
  if (types.size() != levels) {
    config.refuse(key,
                  fmt::format("must have one entry for each of block_out_channels, {}", levels));
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
  // Scores are computed in float32 in any case.
  config.harmless({"upcast_attention", "dropout", "addition_embed_type_num_heads"});
}

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
  std::vector<std::size_t> products;  // that may be quantized: which tensors are their weights
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
    convolution("conv_in", spec_.in_channels, first, 0, 0, false);
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
    if (spec_.mid_transformers > 0) {
      transformer("mid_block.attentions.0", in, spec_.mid_transformers, last);
      resnet("mid_block.resnets.1", in, in, last);
    }
    if (spec_.way_down_alone) return;
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
    convolution("conv_out", in, spec_.out_channels, 0, 0, false);
  }

  static double share_of(int level) { return std::pow(0.25, level); }

  /// Adds a convolution of side 3, which may be `quantized`.
  void convolution(const std::string& name, std::int64_t in, std::int64_t out, int from, int to,
                   bool quantized = true) {
    if (quantized) products.push_back(tensors.size());
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

/// Reads what a U-Net and its ControlNets have alike, all keys but a U-Net's own.
UNetSpec read_network(const ConfigReader& config, bool way_down_alone) {
  UNetSpec spec;
  spec.way_down_alone = way_down_alone;
  const auto widths = config.integers("block_out_channels");
  const std::size_t count = widths.size();
  if (count < 1 || count > kMaxLevels) {
    config.refuse("block_out_channels", fmt::format("must have 1 to {} levels", kMaxLevels));
  }
  spec.in_channels = config.integer_or("in_channels", 4, 1, kMaxWidth);
  const auto layers = per_level(config, "layers_per_block", 2, kMaxLayers, count);
  // Named for a width, but diffusers takes it for the number of heads.
  const auto heads = per_level(config, "attention_head_dim", 8, kMaxWidth, count);
  const auto transformers = per_level(config, "transformer_layers_per_block", 1, kMaxLayers, count,
                                      way_down_alone ? 0 : 1);
  const auto down = attending(config, "down_block_types", "Down", count);
  const auto up =
      way_down_alone ? std::vector<bool>(count) : attending(config, "up_block_types", "Up", count);
  spec.norm_num_groups = config.integer_or("norm_num_groups", 32, 1, kMaxWidth);
  spec.norm_eps = config.number_or("norm_eps", 1e-5);
  for (std::size_t l = 0; l < count; ++l) {
    if (widths[l] < 1 || widths[l] > kMaxWidth || widths[l] % spec.norm_num_groups != 0) {
      config.refuse("block_out_channels",
                    fmt::format("must be multiples of norm_num_groups, {}", spec.norm_num_groups));
    }
    const bool up_attends = up[count - 1 - l];
    spec.levels.push_back({widths[l], layers[l], heads[l], down[l] ? transformers[l] : 0,
                           up_attends ? transformers[l] : 0});
    if ((down[l] || up_attends || l + 1 == count) && widths[l] % heads[l] != 0) {
      config.refuse("attention_head_dim", "must divide block_out_channels");
    }
    if (down[l] && transformers[l] == 0)
      config.refuse("transformer_layers_per_block", "must be above 0 where a block attends");
  }
  spec.mid_transformers = transformers.back();
  constexpr const char* kMid = "mid_block_type";
  if (!way_down_alone) {
    config.only(kMid, "UNetMidBlock2DCrossAttn");
  } else if (config.choice_or(kMid, "UNetMidBlock2DCrossAttn",
                              {"UNetMidBlock2DCrossAttn", "UNetMidBlock2D"}) == "UNetMidBlock2D") {
    spec.mid_transformers = 0;
  } else if (spec.mid_transformers == 0) {
    config.refuse("transformer_layers_per_block", "must end above 0, because the middle attends");
  }
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
  if (!(spec.norm_eps > 0 && spec.norm_eps < 1)) {
    config.refuse("norm_eps", "must be between 0 and 1");
  }
  return spec;
}

}  // namespace

UNetSpec UNetSpec::read(const ConfigReader& config) {
  if (config.has("_class_name")) config.only("_class_name", "UNet2DConditionModel");
  UNetSpec spec = read_network(config, false);
  spec.out_channels = config.integer_or("out_channels", 4, 1, kMaxWidth);
  if (spec.in_channels < spec.out_channels)
    config.refuse("in_channels", fmt::format("is less than out_channels, {}", spec.out_channels));
  spec.sample_size = config.optional_integer("sample_size", 1, kMaxWidth).value_or(64);
  config.finish();
  return spec;
}

UNetSpec UNetSpec::read_way_down(const ConfigReader& config) {
  return read_network(config, true);
}

void check_fit(const UNetSpec& spec, const FitCheck& fit) {
  std::int64_t width = 0;
  for (std::size_t encoder = 0; encoder < fit.model.text_encoders.size(); ++encoder)
    width += fit.clip(encoder).hidden_size;
  fit.require("cross_attention_dim", spec.cross_attention_dim, "the text encoders' hidden_size",
              width);
  const bool added = fit.model.text_encoders.size() == 2;
  fit.require(
      "projection_class_embeddings_input_dim", spec.projection_class_embeddings_input_dim,
      "the pooled text and six sizes",
      added ? fit.clip(1).pooled_size() + UNetSpec::kTimeIds * spec.addition_time_embed_dim : 0);
}

std::vector<Pipeline> UNetSpec::pipelines() {
  const Pipeline first = {.name = "StableDiffusionPipeline",
                          .encoders = {{"text_encoder", "tokenizer", kClip, kClipTokenizers,
                                        TextUse::states, kClipTokens}},
                          .network = "unet",
                          .text_tokens = kClipTokens,
                          .defaults = {{50, 7.5}, {50, 7.5, 0.8}, {50, 7.5, 1}},
                          .rescales_guidance = true,
                          .mends_old_settings = true,
                          .ignores_vae_shift = true,
                          .keeps_picture_size = true,
                          .inputs = {.controlnets = true},
                          .controlnet_pipeline = "StableDiffusionControlNetPipeline",
                          .textual_inversion = true};
  const Pipeline xl = {.name = "StableDiffusionXLPipeline",
                       .encoders = {{"text_encoder", "tokenizer", kClip, kClipTokenizers,
                                     TextUse::penultimate_pooled, kClipTokens},
                                    {"text_encoder_2", "tokenizer_2", kProjectedClip,
                                     kClipTokenizers, TextUse::penultimate_pooled, kClipTokens}},
                       .network = "unet",
                       .text_tokens = kClipTokens,
                       .defaults = {{50, 5}, {50, 5, 0.3}, {50, 7.5, 0.9999}},
                       .rescales_guidance = true,
                       .ignores_vae_shift = true,
                       .keeps_picture_size = true,
                       .inputs = {.controlnets = true},
                       .controlnet_pipeline = "StableDiffusionXLControlNetPipeline",
                       .textual_inversion = true};
  std::vector<Pipeline> all = {
      first, with_controlnets(first, {{50, 7.5}, {50, 7.5, 0.8, 0.8}, {50, 7.5, 1, 0.5}}), xl,
      with_controlnets(xl, {{50, 5}, {50, 5, 0.8, 0.8}, {50, 5, 0.9999}})};
  // U-Nets that were trained for inpainting are in folders of these pipelines. Source: defaults of
  // their calls; StableDiffusionInpaintPipeline's has no guidance_rescale.
  for (const auto& [name, of] : {std::pair("StableDiffusionInpaintPipeline", &first),
                                 std::pair("StableDiffusionXLInpaintPipeline", &xl)}) {
    Pipeline inpaints = *of;
    inpaints.name = name;
    inpaints.defaults = {inpaints.defaults.inpainting};
    inpaints.rescales_guidance = of == &xl;
    inpaints.inputs = {.beside = BesideLatents::mask_and_masked_picture};
    inpaints.controlnet_pipeline.clear();
    all.push_back(std::move(inpaints));
  }
  return all;
}

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
  facts.in_channels = spec.out_channels;
  facts.beside_channels = spec.in_channels - spec.out_channels;
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
  for (const auto product : walk.products) {
    planned[product].scales = {{planned[product].tensor.shape.front(), 0}};
    planned[product].may_stay_packed = true;
  }
  return planned;
}

}  // namespace troupe::spec
