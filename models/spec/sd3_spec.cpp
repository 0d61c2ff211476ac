#include "models/spec/sd3_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

std::string block_prefix(std::int64_t block) {
  return fmt::format("transformer_blocks.{}.", block);
}

void add_attention(TensorTable& table, const std::string& name, const JointBlockShape& shape) {
  for (const char* projection : {".to_q", ".to_k", ".to_v"})
    table.split_outputs(name + projection, shape.width, shape.width, shape.heads, shape.bias);
  table.split_inputs(name + ".to_out.0", shape.width, shape.width, shape.heads, shape.bias);
  if (!shape.qk_norm) return;
  table.add(name + ".norm_q.weight", {shape.head_dim});
  table.add(name + ".norm_k.weight", {shape.head_dim});
}

void add_forward(TensorTable& table, const std::string& name, const JointBlockShape& shape) {
  const std::int64_t width = shape.width, gated = shape.gated_forward;
  const std::int64_t wide = gated > 0 ? gated : 4 * width;
  const std::string part = name + ".";
  table.split_outputs(part + shape.names.widen, width, gated > 0 ? 2 * gated : wide, wide,
                      shape.bias);
  table.split_inputs(part + shape.names.narrow, wide, width, wide, shape.bias);
}

}  // namespace

void add_joint_block(TensorTable& table, const std::string& prefix, const JointBlockShape& shape) {
  const std::int64_t width = shape.width;
  if (shape.modulates) {
    table.linear(prefix + shape.names.norm, width, (shape.dual ? 9 : 6) * width);
    table.linear(prefix + shape.names.text_norm, width, (shape.last ? 2 : 6) * width);
  }
  add_attention(table, prefix + "attn", shape);
  for (const char* projection : {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"})
    table.split_outputs(prefix + projection, width, width, shape.heads, shape.bias);
  if (!shape.last)
    table.split_inputs(prefix + "attn.to_add_out", width, width, shape.heads, shape.bias);
  if (shape.qk_norm) {
    table.add(prefix + "attn.norm_added_q.weight", {shape.head_dim});
    table.add(prefix + "attn.norm_added_k.weight", {shape.head_dim});
  }
  if (shape.dual) add_attention(table, prefix + "attn2", shape);
  add_forward(table, prefix + shape.names.forward, shape);
  if (!shape.last) add_forward(table, prefix + shape.names.text_forward, shape);
}

bool Sd3Spec::is_dual(std::int64_t block) const {
  return std::ranges::find(dual_attention_layers, block) != dual_attention_layers.end();
}

Sd3Spec Sd3Spec::read(const ConfigReader& config) {
  Sd3Spec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  spec.sample_size = size("sample_size", spec.sample_size);
  spec.patch_size = size("patch_size", spec.patch_size);
  spec.in_channels = size("in_channels", spec.in_channels);
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 1, kMaxBlocks);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.joint_attention_dim = size("joint_attention_dim", spec.joint_attention_dim);
  spec.pooled_projection_dim = size("pooled_projection_dim", spec.pooled_projection_dim);
  spec.pos_embed_max_size = size("pos_embed_max_size", spec.pos_embed_max_size);
  if (config.has_value("dual_attention_layers"))
    spec.dual_attention_layers = config.integers("dual_attention_layers");
  if (spec.dual_attention_layers.size() > kMaxBlocks)
    config.refuse("dual_attention_layers", "has more entries than a model may have blocks");
  if (config.has_value("qk_norm")) {
    config.only("qk_norm", "rms_norm");
    spec.qk_norm = true;
  }
  config.harmless({"dual_attention_layers", "qk_norm"});
  const std::int64_t caption = size("caption_projection_dim", 1152);
  const std::int64_t out =
      config.has_value("out_channels") ? size("out_channels", 16) : spec.in_channels;
  config.harmless({"out_channels"});
  config.finish();
  if (spec.inner_dim() > kMaxWidth) config.refuse("attention_head_dim", "makes blocks too wide");
  if (caption != spec.inner_dim()) {
    config.refuse("caption_projection_dim",
                  fmt::format("must equal heads × head size, {}", spec.inner_dim()));
  }
  if (out != spec.in_channels) {
    config.refuse("out_channels", fmt::format("must equal in_channels, {}", spec.in_channels));
  }
  if (spec.sample_size % spec.patch_size != 0) {
    config.refuse("patch_size", fmt::format("does not divide sample_size, {}", spec.sample_size));
  }
  for (const std::int64_t block : spec.dual_attention_layers) {
    if (block < 0 || block >= spec.num_layers)
      config.refuse("dual_attention_layers", "names a block that there is not");
  }
  return spec;
}

std::vector<PlannedTensor> planned_tensors(const Sd3Spec& spec) {
  const std::int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const std::int64_t side = spec.pos_embed_max_size;
  TensorTable table;
  table.at(Held::first);
  table.add("pos_embed.pos_embed", {1, side * side, width});
  table.add("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
  table.add("pos_embed.proj.bias", {width});
  table.linear("context_embedder", spec.joint_attention_dim, width);
  table.at(Held::everywhere);
  table.linear("time_text_embed.timestep_embedder.linear_1", kTimeFrequencies, width);
  table.linear("time_text_embed.timestep_embedder.linear_2", width, width);
  table.linear("time_text_embed.text_embedder.linear_1", spec.pooled_projection_dim, width);
  table.linear("time_text_embed.text_embedder.linear_2", width, width);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    add_joint_block(table, block_prefix(block),
                    {.width = width,
                     .heads = spec.num_attention_heads,
                     .head_dim = spec.attention_head_dim,
                     .qk_norm = spec.qk_norm,
                     .dual = spec.is_dual(block),
                     .last = spec.is_last(block)});
  }
  table.at(Held::last);
  table.linear("norm_out.linear", width, 2 * width);
  table.linear("proj_out", width, patch * patch * spec.in_channels);
  return table.take();
}

TransformerFacts facts_of(const Sd3Spec& spec) {
  const auto width = static_cast<double>(spec.inner_dim());
  TransformerFacts facts;
  facts.num_layers = spec.num_layers;
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.in_channels;
  facts.out_channels = spec.in_channels;
  facts.patch_size = spec.patch_size;
  facts.sample_size = spec.sample_size;
  facts.most_tokens_a_side = spec.pos_embed_max_size;
  facts.caption_width = spec.inner_dim();
  facts.pooled_width = spec.pooled_projection_dim;
  facts.more_text_tokens = kClipTokens;
  facts.joint = true;
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const bool dual = spec.is_dual(block);
    facts.blocks.push_back({.weights = (dual ? 16 : 12) * width * width,
                            .picture_sums = dual ? 3 : 2,
                            .text_sums = spec.is_last(block) ? 0 : 2,
                            .picture_attention = dual});
  }
  return facts;
}

void check_fit(const Sd3Spec& spec, const FitCheck& fit) {
  fit.require("pooled_projection_dim", spec.pooled_projection_dim, "both CLIP's vectors",
              fit.clip(0).pooled_size() + fit.clip(1).pooled_size());
  if (fit.model.text_encoders[2].absent) return;
  fit.require("joint_attention_dim", spec.joint_attention_dim, "text_encoder_3 d_model",
              fit.t5(2).d_model);
}

std::vector<Pipeline> Sd3Spec::pipelines() {
  return {
      {.name = "StableDiffusion3Pipeline",
       .encoders = {{"text_encoder", "tokenizer", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens},
                    {"text_encoder_3", "tokenizer_3", kT5, kT5Tokenizers, TextUse::states, 0,
                     true}},
       .text_tokens = 256,
       .defaults = {{28, 7}, {50, 7, 0.6}, {50, 7, 0.6}}},
  };
}

}  // namespace troupe::spec
