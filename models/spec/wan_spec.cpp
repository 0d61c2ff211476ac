#include "models/spec/wan_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

/// Frames of a video that WanPipeline makes if no number is asked for.
constexpr std::int64_t kSampleFrames = 81;
constexpr std::int64_t kTextTokens = 512;

void add_attention(TensorTable& table, const std::string& name, const WanSpec& spec) {
  const std::int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  for (const char* projection : {".to_q", ".to_k", ".to_v"})
    table.split_outputs(name + projection, width, width, heads);
  table.split_inputs(name + ".to_out.0", width, width, heads);
  table.split_vector(name + ".norm_q.weight", width, heads);
  table.split_vector(name + ".norm_k.weight", width, heads);
}

/// Keys and values of what a vision tower saw.
void add_picture_attention(TensorTable& table, const std::string& name, const WanSpec& spec) {
  const std::int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  table.split_outputs(name + ".add_k_proj", width, width, heads);
  table.split_outputs(name + ".add_v_proj", width, width, heads);
  table.split_vector(name + ".norm_added_k.weight", width, heads);
}

void add_picture_embedder(TensorTable& table, const WanSpec& spec) {
  const std::string name = "condition_embedder.image_embedder.";
  const auto norm = [&](const char* which, std::int64_t width) {
    table.add(name + which + ".weight", {width});
    table.add(name + which + ".bias", {width});
  };
  norm("norm1", spec.image_dim);
  table.linear(name + "ff.net.0.proj", spec.image_dim, spec.image_dim);
  table.linear(name + "ff.net.2", spec.image_dim, spec.inner_dim());
  norm("norm2", spec.inner_dim());
  if (spec.pos_embed_seq_len > 0)
    table.add(name + "pos_embed", {1, spec.pos_embed_seq_len, spec.image_dim});
}

}  // namespace

WanSpec WanSpec::read(const ConfigReader& config) {
  WanSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  if (config.has("patch_size")) {
    const auto patch = config.integers("patch_size");
    if (patch.size() != 3 || patch[0] != 1 || patch[1] < 1 || patch[1] > 64 ||
        patch[1] != patch[2]) {
      config.refuse("patch_size", "is not supported: one frame, and rows as many as columns");
    }
    spec.patch_size = patch[1];
  }
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.in_channels = size("in_channels", spec.in_channels);
  spec.out_channels = config.has_value("out_channels") || !config.has("out_channels")
                          ? size("out_channels", spec.out_channels)
                          : spec.in_channels;
  if (spec.out_channels > spec.in_channels)
    config.refuse("out_channels", fmt::format("must be at most in_channels, {}", spec.in_channels));
  spec.text_dim = size("text_dim", spec.text_dim);
  spec.ffn_dim = config.integer_or("ffn_dim", spec.ffn_dim, 1, 4 * kMaxWidth);
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 1, kMaxBlocks);
  spec.cross_attn_norm = config.boolean_or("cross_attn_norm", spec.cross_attn_norm);
  spec.eps = config.number_or("eps", spec.eps);
  spec.rope_max_seq_len = size("rope_max_seq_len", spec.rope_max_seq_len);
  config.only("freq_dim", kTimeFrequencies);
  config.only("qk_norm", "rms_norm_across_heads");
  if (config.has_value("image_dim")) {
    spec.image_dim = size("image_dim", 0);
    config.only("added_kv_proj_dim", spec.inner_dim());
    if (config.has_value("pos_embed_seq_len"))
      spec.pos_embed_seq_len = size("pos_embed_seq_len", 0);
  } else {
    config.only("image_dim", nullptr);
    config.only("added_kv_proj_dim", nullptr);
    config.only("pos_embed_seq_len", nullptr);
  }
  config.harmless({"out_channels", "pos_embed_seq_len"});
  config.finish();
  if (spec.inner_dim() > kMaxWidth) config.refuse("attention_head_dim", "makes blocks too wide");
  if (spec.attention_head_dim % 2 != 0 || spec.attention_head_dim < 6) {
    config.refuse("attention_head_dim", "must be even and at least 6 for rotary positions");
  }
  if (!(spec.eps > 0 && spec.eps < 1)) config.refuse("eps", "must be between 0 and 1");
  return spec;
}

std::vector<PlannedTensor> planned_tensors(const WanSpec& spec) {
  const std::int64_t width = spec.inner_dim(), patch = spec.patch_size;
  TensorTable table;
  table.at(Held::first);
  table.add("patch_embedding.weight", {width, spec.in_channels, 1, patch, patch});
  table.add("patch_embedding.bias", {width});
  table.linear("condition_embedder.text_embedder.linear_1", spec.text_dim, width);
  table.linear("condition_embedder.text_embedder.linear_2", width, width);
  table.at(Held::everywhere);
  table.linear("condition_embedder.time_embedder.linear_1", kTimeFrequencies, width);
  table.linear("condition_embedder.time_embedder.linear_2", width, width);
  table.linear("condition_embedder.time_proj", width, 6 * width);
  if (spec.image_dim > 0) add_picture_embedder(table, spec);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    const std::string prefix = fmt::format("blocks.{}.", block);
    table.add(prefix + "scale_shift_table", {1, 6, width});
    add_attention(table, prefix + "attn1", spec);
    add_attention(table, prefix + "attn2", spec);
    if (spec.image_dim > 0) add_picture_attention(table, prefix + "attn2", spec);
    if (spec.cross_attn_norm) {
      table.add(prefix + "norm2.weight", {width});
      table.add(prefix + "norm2.bias", {width});
    }
    table.split_outputs(prefix + "ffn.net.0.proj", width, spec.ffn_dim, spec.ffn_dim);
    table.split_inputs(prefix + "ffn.net.2", spec.ffn_dim, width, spec.ffn_dim);
  }
  table.at(Held::last);
  table.add("scale_shift_table", {1, 2, width});
  table.linear("proj_out", width, patch * patch * spec.out_channels);
  return table.take();
}

TransformerFacts facts_of(const WanSpec& spec) {
  const auto width = static_cast<double>(spec.inner_dim());
  TransformerFacts facts;
  facts.num_layers = spec.num_layers;
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.out_channels;
  facts.beside_channels = spec.in_channels - spec.out_channels;
  facts.out_channels = spec.out_channels;
  facts.patch_size = spec.patch_size;
  facts.sample_frames = kSampleFrames;
  facts.most_tokens_a_side = spec.rope_max_seq_len;
  facts.caption_width = spec.inner_dim();
  // diffusers takes what is before the last 512 tokens for the vision tower's.
  if (spec.image_dim > 0) facts.fixed_text_tokens = kTextTokens;
  // q, k, v and out; q and out of cross-attention; two of the feed-forward.
  const BlockFacts block{
      .weights = (4 + 2) * width * width + 2 * width * static_cast<double>(spec.ffn_dim),
      .caption_weights = 2 * width * width,
      .picture_sums = 3,
      .norms_across_heads = true};
  facts.blocks.assign(static_cast<std::size_t>(spec.num_layers), block);
  return facts;
}

void check_fit(const WanSpec& spec, const FitCheck& fit) {
  fit.require("text_dim", spec.text_dim, "text_encoder d_model", fit.t5(0).d_model);
  const auto& vision = fit.model.vision;
  fit.require("image_dim", spec.image_dim, "image_encoder hidden_size",
              vision ? vision->config.hidden_size : 0);
  if (spec.pos_embed_seq_len > 0)
    fit.require("pos_embed_seq_len", spec.pos_embed_seq_len, "image_encoder's tokens of two frames",
                2 * vision->config.tokens());
}

std::vector<Pipeline> WanSpec::pipelines() {
  const Pipeline from_text = {
      .name = "WanPipeline",
      .encoders = {{"text_encoder", "tokenizer", kUmt5, kT5Tokenizers, TextUse::zeroed_states}},
      .second_network = "transformer_2",
      .text_tokens = kTextTokens,
      .defaults = {{50, 5}},
      .height = 480,
      .width = 832,
      .mends_prompts = true,
      .from_text_alone = true,
      .may_expand_timesteps = true,
      .vae = "AutoencoderKLWan"};
  Pipeline from_frame = from_text;
  from_frame.name = "WanImageToVideoPipeline";
  from_frame.inputs = {.images = PictureRole::first_frame,
                       .most_images = 1,
                       .needs_images = true,
                       .last_image = true,
                       .beside = BesideLatents::given_frames};
  return {from_text, from_frame};
}

}  // namespace troupe::spec
