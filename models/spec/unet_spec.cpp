#include "models/spec/unet_spec.h"

#include <algorithm>

#include "base/format.h"
#include "models/spec/config_limits.h"
#include "models/spec/fit_check.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

constexpr std::int64_t kMaxLayers = 64;

/// Reads one number for all levels, or one for each.
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
                  fmt::format("must have one entry for each of block_out_channels, {}", levels));
  }
  if (std::ranges::any_of(values, [&](auto v) { return v < 1 || v > max; })) {
    config.refuse(key, fmt::format("must be from 1 to {}", max));
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
  config.only("mid_block_type", "UNetMidBlock2DCrossAttn");
  // Scores are computed in float32 in any case.
  config.harmless({"upcast_attention", "dropout", "addition_embed_type_num_heads"});
}

}  // namespace

UNetSpec UNetSpec::read(const ConfigReader& config) {
  UNetSpec spec;
  if (config.has("_class_name")) config.only("_class_name", "UNet2DConditionModel");
  const auto widths = config.integers("block_out_channels");
  const std::size_t count = widths.size();
  if (count < 1 || count > kMaxLevels) {
    config.refuse("block_out_channels", fmt::format("must have 1 to {} levels", kMaxLevels));
  }
  spec.in_channels = config.integer_or("in_channels", 4, 1, kMaxWidth);
  if (spec.in_channels == 9) {
    config.refuse("in_channels",
                  "is of a U-Net trained for inpainting, which is not supported; "
                  "others, with 4, take a mask");
  }
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
      config.refuse("block_out_channels",
                    fmt::format("must be multiples of norm_num_groups, {}", spec.norm_num_groups));
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

void check_fit(const UNetSpec& spec, const FitCheck& fit) {
  std::int64_t width = 0;
  for (std::size_t encoder = 0; encoder < fit.model.text_encoders.size(); ++encoder)
    width += fit.clip(encoder).hidden_size;
  fit.require("cross_attention_dim", spec.cross_attention_dim, "the text encoders' hidden_size",
              width);
  fit.require("out_channels", spec.out_channels, "its own in_channels", spec.in_channels);
  const bool added = fit.model.text_encoders.size() == 2;
  fit.require(
      "projection_class_embeddings_input_dim", spec.projection_class_embeddings_input_dim,
      "the pooled text and six sizes",
      added ? fit.clip(1).pooled_size() + UNetSpec::kTimeIds * spec.addition_time_embed_dim : 0);
}

std::vector<Pipeline> UNetSpec::pipelines() {
  return {
      {.name = "StableDiffusionPipeline",
       .encoders = {{"text_encoder", "tokenizer", kClip, kClipTokenizers, TextUse::states,
                     kClipTokens}},
       .network = "unet",
       .text_tokens = kClipTokens,
       .defaults = {{50, 7.5}, {50, 7.5, 0.8}, {50, 7.5, 1}},
       .rescales_guidance = true,
       .mends_old_settings = true,
       .ignores_vae_shift = true,
       .keeps_picture_size = true,
       .textual_inversion = true},
      {.name = "StableDiffusionXLPipeline",
       .encoders = {{"text_encoder", "tokenizer", kClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens}},
       .network = "unet",
       .text_tokens = kClipTokens,
       .defaults = {{50, 5}, {50, 5, 0.3}, {50, 7.5, 0.9999}},
       .rescales_guidance = true,
       .ignores_vae_shift = true,
       .keeps_picture_size = true,
       .textual_inversion = true},
  };
}

}  // namespace troupe::spec
