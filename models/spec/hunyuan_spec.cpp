#include "models/spec/hunyuan_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

/// Numbers that say how a picture was cut, of 256 features each.
constexpr std::int64_t kSizes = 6;

void add_norm(TensorTable& table, const std::string& name, std::int64_t width) {
  table.add(name + ".weight", {width});
  table.add(name + ".bias", {width});
}

void add_attention(TensorTable& table, const std::string& name, const HunyuanSpec& spec,
                   std::int64_t key_width) {
  const std::int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  table.split_outputs(name + ".to_q", width, width, heads);
  table.split_outputs(name + ".to_k", key_width, width, heads);
  table.split_outputs(name + ".to_v", key_width, width, heads);
  table.split_inputs(name + ".to_out.0", width, width, heads);
  add_norm(table, name + ".norm_q", spec.attention_head_dim);
  add_norm(table, name + ".norm_k", spec.attention_head_dim);
}

}  // namespace

std::int64_t HunyuanSpec::extra_dim() const {
  return pooled_projection_dim +
         (use_style_cond_and_image_meta_size ? kSizes * kTimeFrequencies + inner_dim() : 0);
}

HunyuanSpec HunyuanSpec::read(const ConfigReader& config) {
  HunyuanSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.in_channels = config.integer("in_channels", 1, kMaxWidth);
  spec.patch_size = config.integer("patch_size", 1, kMaxWidth);
  spec.sample_size = size("sample_size", spec.sample_size);
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 2, kMaxBlocks);
  spec.mlp_ratio = config.number_or("mlp_ratio", spec.mlp_ratio);
  spec.learn_sigma = config.boolean_or("learn_sigma", spec.learn_sigma);
  spec.cross_attention_dim = size("cross_attention_dim", spec.cross_attention_dim);
  spec.cross_attention_dim_t5 = size("cross_attention_dim_t5", spec.cross_attention_dim_t5);
  spec.pooled_projection_dim = size("pooled_projection_dim", spec.pooled_projection_dim);
  spec.text_len = size("text_len", spec.text_len);
  spec.text_len_t5 = size("text_len_t5", spec.text_len_t5);
  spec.use_style_cond_and_image_meta_size = config.boolean_or(
      "use_style_cond_and_image_meta_size", spec.use_style_cond_and_image_meta_size);
  const std::int64_t hidden = size("hidden_size", 1152);
  config.only("activation_fn", "gelu-approximate");
  config.only("norm_type", "layer_norm");
  config.harmless({"dropout"});
  config.finish();
  if (spec.inner_dim() > kMaxWidth) config.refuse("attention_head_dim", "makes blocks too wide");
  if (hidden != spec.inner_dim()) {
    config.refuse("hidden_size", fmt::format("must equal heads × head size, {}", spec.inner_dim()));
  }
  if (spec.attention_head_dim % 4 != 0) {
    config.refuse("attention_head_dim", "must be a multiple of 4 for rotary positions");
  }
  if (!(spec.mlp_ratio > 0 && spec.mlp_ratio < 64)) {
    config.refuse("mlp_ratio", "must be positive");
  }
  if (spec.num_layers % 2 != 0) {
    config.refuse("num_layers", "must be even: the second half takes up what the first one left");
  }
  if (spec.cross_attention_dim_t5 % 8 != 0) {
    config.refuse("cross_attention_dim_t5", "must be a multiple of the pooler's 8 heads");
  }
  return spec;
}

std::vector<PlannedTensor> planned_tensors(const HunyuanSpec& spec) {
  const std::int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const std::int64_t t5 = spec.cross_attention_dim_t5, wide = spec.ff_inner_dim();
  TensorTable table;
  table.at(Held::first);
  table.add("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
  table.add("pos_embed.proj.bias", {width});
  table.linear("text_embedder.linear_1", t5, 4 * t5);
  table.linear("text_embedder.linear_2", 4 * t5, spec.cross_attention_dim);
  table.add("text_embedding_padding", {spec.text_len + spec.text_len_t5, spec.cross_attention_dim});
  table.add("time_extra_emb.pooler.positional_embedding", {spec.text_len_t5 + 1, t5});
  for (const char* name : {"k_proj", "q_proj", "v_proj"})
    table.linear(std::string("time_extra_emb.pooler.") + name, t5, t5);
  table.linear("time_extra_emb.pooler.c_proj", t5, spec.pooled_projection_dim);
  table.at(Held::everywhere);
  table.linear("time_extra_emb.timestep_embedder.linear_1", kTimeFrequencies, width);
  table.linear("time_extra_emb.timestep_embedder.linear_2", width, width);
  if (spec.use_style_cond_and_image_meta_size)
    table.add("time_extra_emb.style_embedder.weight", {1, width});
  table.linear("time_extra_emb.extra_embedder.linear_1", spec.extra_dim(), 4 * width);
  table.linear("time_extra_emb.extra_embedder.linear_2", 4 * width, width);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    const std::string prefix = fmt::format("blocks.{}.", block);
    table.linear(prefix + "norm1.linear", width, width);
    add_norm(table, prefix + "norm1.norm", width);
    add_attention(table, prefix + "attn1", spec, width);
    add_norm(table, prefix + "norm2", width);
    add_attention(table, prefix + "attn2", spec, spec.cross_attention_dim);
    add_norm(table, prefix + "norm3", width);
    table.split_outputs(prefix + "ff.net.0.proj", width, wide, wide);
    table.split_inputs(prefix + "ff.net.2", wide, width, wide);
    if (!spec.takes_skip(block)) continue;
    add_norm(table, prefix + "skip_norm", 2 * width);
    table.linear(prefix + "skip_linear", 2 * width, width);
  }
  table.at(Held::last);
  table.linear("norm_out.linear", width, 2 * width);
  const std::int64_t cells = patch * patch;
  const std::int64_t channels = (spec.learn_sigma ? 2 : 1) * spec.in_channels;
  table.add("proj_out.weight", {cells * channels, width});
  table.keep(cells * spec.in_channels * width);
  table.add("proj_out.bias", {cells * channels});
  table.keep(cells * spec.in_channels);
  return table.take();
}

TransformerFacts facts_of(const HunyuanSpec& spec) {
  const auto width = static_cast<double>(spec.inner_dim());
  const auto wide = static_cast<double>(spec.ff_inner_dim());
  TransformerFacts facts;
  facts.num_layers = spec.num_layers;
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.in_channels;
  facts.out_channels = (spec.learn_sigma ? 2 : 1) * spec.in_channels;
  facts.patch_size = spec.patch_size;
  facts.sample_size = spec.sample_size;
  facts.caption_width = spec.cross_attention_dim;
  facts.pooled_width = spec.pooled_projection_dim;
  facts.more_text_tokens = spec.text_len;
  facts.fixed_text_tokens = spec.text_len_t5;
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const bool takes = spec.takes_skip(block);
    facts.skip_from.push_back(takes ? static_cast<int>(spec.num_layers - 1 - block) : -1);
    facts.blocks.push_back(
        {.weights = (6 + (takes ? 2 : 0)) * width * width + 2 * wide * width,
         .caption_weights = 2 * static_cast<double>(spec.cross_attention_dim) * width,
         .picture_sums = 3});
  }
  return facts;
}

void check_fit(const HunyuanSpec& spec, const FitCheck& fit) {
  fit.require("text_len", spec.text_len, "the pipeline's tokens of BERT", kClipTokens);
  fit.require("cross_attention_dim", spec.cross_attention_dim, "text_encoder hidden_size",
              fit.bert(0).hidden_size);
  fit.require("cross_attention_dim_t5", spec.cross_attention_dim_t5, "text_encoder_2 d_model",
              fit.t5(1).d_model);
}

std::vector<Pipeline> HunyuanSpec::pipelines() {
  return {
      {.name = "HunyuanDiTPipeline",
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"BertModel"},
                     {"BertTokenizer", "BertTokenizerFast"},
                     TextUse::padded_states,
                     kClipTokens},
                    {"text_encoder_2",
                     "tokenizer_2",
                     kT5,
                     {"T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast"},
                     TextUse::padded_states}},
       .text_tokens = 256,
       .defaults = {{50, 5}},
       .rescales_guidance = true,
       .ignores_vae_shift = true},
  };
}

}  // namespace troupe::spec
