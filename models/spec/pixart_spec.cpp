#include "models/spec/pixart_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
PixArtSpec PixArtSpec::read(const ConfigReader& config) {
  PixArtSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.in_channels = size("in_channels", spec.in_channels);
  spec.out_channels = config.has("out_channels") && !config.has_value("out_channels")
                          ? spec.in_channels
                          : size("out_channels", spec.out_channels);
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 1, kMaxBlocks);
  spec.cross_attention_dim = size("cross_attention_dim", spec.cross_attention_dim);
  spec.sample_size = size("sample_size", spec.sample_size);
  spec.patch_size = size("patch_size", spec.patch_size);
  if (!config.has_value("caption_channels")) {
    config.refuse("caption_channels", "is not supported (a number is needed)");
  }
  spec.caption_channels = config.integer("caption_channels", 1, kMaxWidth);
  const auto fallback_scale = std::max<std::int64_t>(spec.sample_size / 64, 1);
  spec.interpolation_scale =
      config.optional_number("interpolation_scale").value_or(static_cast<double>(fallback_scale));
  spec.use_additional_conditions =
      config.optional_boolean("use_additional_conditions").value_or(spec.sample_size == 128);
  spec.norm_eps = config.number_or("norm_eps", spec.norm_eps);
  spec.attention_bias = config.boolean_or("attention_bias", spec.attention_bias);

  config.only("activation_fn", "gelu-approximate");
  config.only("norm_type", "ada_norm_single");
  config.only("norm_elementwise_affine", false);
  config.only("num_embeds_ada_norm", 1000);
  config.only("upcast_attention", false);
  if (config.has_value("attention_type")) config.only("attention_type", "default");
  config.only("double_self_attention", false);
  config.only("only_cross_attention", false);
  config.only("use_linear_projection", false);
  if (config.has_value("num_vector_embeds")) config.only("num_vector_embeds", false);
  config.harmless({"dropout", "norm_num_groups", "num_vector_embeds", "attention_type"});
  config.finish();

  if (!(spec.interpolation_scale > 0 && spec.interpolation_scale < 1e6)) {
    config.refuse("interpolation_scale", "must be positive");
  }
  if (!(spec.norm_eps > 0 && spec.norm_eps < 1)) {
    config.refuse("norm_eps", "must be between 0 and 1");
  }
  if (spec.inner_dim() > kMaxWidth || spec.inner_dim() % 4 != 0) {
    config.refuse("attention_head_dim",
                  fmt::format("gives a width of {}, which must be a multiple of 4 up to {}",
                              spec.inner_dim(), kMaxWidth));
  }
  if (spec.use_additional_conditions && spec.inner_dim() % 3 != 0) {
    config.refuse("use_additional_conditions",
                  fmt::format("needs a width that 3 divides, not {}", spec.inner_dim()));
  }
  if (spec.cross_attention_dim != spec.inner_dim()) {
    config.refuse("cross_attention_dim",
                  fmt::format("must equal heads × head size, {}", spec.inner_dim()));
  }
  if (spec.out_channels != spec.in_channels && !spec.learned_sigma()) {
    config.refuse("out_channels",
                  fmt::format("must be once or twice in_channels, {}", spec.in_channels));
  }
  if (spec.sample_size % spec.patch_size != 0) {
    config.refuse("patch_size", fmt::format("does not divide sample_size, {}", spec.sample_size));
  }
  return spec;
}

std::string pixart_block_prefix(std::int64_t block) {
  return fmt::format("transformer_blocks.{}.", block);
}

std::vector<PlannedTensor> planned_tensors(const PixArtSpec& spec) {
  const std::int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  TensorTable table;
  table.at(Held::first);
  table.add("pos_embed.proj.weight", {width, spec.in_channels, spec.patch_size, spec.patch_size});
  table.add("pos_embed.proj.bias", {width});
  table.linear("caption_projection.linear_1", spec.caption_channels, width);
  table.linear("caption_projection.linear_2", width, width);
  table.at(Held::everywhere);
  table.linear("adaln_single.emb.timestep_embedder.linear_1", kTimeFrequencies, width);
  table.linear("adaln_single.emb.timestep_embedder.linear_2", width, width);
  if (spec.use_additional_conditions) {
    const std::int64_t narrow = spec.condition_dim();
    for (const std::string name : {"resolution_embedder", "aspect_ratio_embedder"}) {
      table.linear("adaln_single.emb." + name + ".linear_1", kTimeFrequencies, narrow);
      table.linear("adaln_single.emb." + name + ".linear_2", narrow, narrow);
    }
  }
  table.linear("adaln_single.linear", width, 6 * width);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    const std::string prefix = pixart_block_prefix(block);
    table.add(prefix + "scale_shift_table", {6, width});
    for (const std::string attention : {"attn1", "attn2"}) {
      for (const std::string projection : {".to_q", ".to_k", ".to_v"}) {
        table.split_outputs(prefix + attention + projection, width, width, heads,
                            spec.attention_bias);
      }
      table.split_inputs(prefix + attention + ".to_out.0", width, width, heads);
    }
    table.split_outputs(prefix + "ff.net.0.proj", width, 4 * width, 4 * width);
    table.split_inputs(prefix + "ff.net.2", 4 * width, width, 4 * width);
  }
  table.at(Held::last);
  table.add("scale_shift_table", {2, width});
  const std::int64_t cells = spec.patch_size * spec.patch_size;
  table.add("proj_out.weight", {cells * spec.out_channels, width});
  table.keep(cells * spec.in_channels * width);
  table.add("proj_out.bias", {cells * spec.out_channels});
  table.keep(cells * spec.in_channels);
  return table.take();
}

TransformerFacts facts_of(const PixArtSpec& spec) {
  const auto width = static_cast<double>(spec.inner_dim());
  TransformerFacts facts;
  facts.num_layers = spec.num_layers;
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.in_channels;
  facts.out_channels = spec.out_channels;
  facts.patch_size = spec.patch_size;
  facts.sample_size = spec.sample_size;
  facts.caption_width = spec.inner_dim();
  facts.pads_text = false;
  // q, k, v and out; q and out of cross-attention; two of the feed-forward, four-fold wide.
  const BlockFacts block{.weights = (4 + 2 + 8) * width * width,
                         .caption_weights = 2 * width * width,
                         .picture_sums = 3};
  facts.blocks.assign(static_cast<std::size_t>(spec.num_layers), block);
  return facts;
}

void check_fit(const PixArtSpec& spec, const FitCheck& fit) {
  fit.require("caption_channels", spec.caption_channels, "text_encoder d_model", fit.t5(0).d_model);
}

std::vector<Pipeline> PixArtSpec::pipelines() {
  return {
      {.name = "PixArtAlphaPipeline",
       .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers}},
       .text_tokens = 120,
       .defaults = {{20, 4.5}},
       .pixart_customs = true,
       .one_step_is_clean = true,
       .ignores_vae_shift = true},
      {.name = "PixArtSigmaPipeline",
       .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers}},
       .text_tokens = 300,
       .defaults = {{20, 4.5}},
       .pixart_customs = true,
       .ignores_vae_shift = true},
  };
}

}  // namespace troupe::spec
