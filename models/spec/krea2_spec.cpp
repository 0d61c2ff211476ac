#include "models/spec/krea2_spec.h"

#include <iterator>

#include "base/format.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

/// Source: Krea2Pipeline, which makes 1024 × 1024 pixels.
constexpr std::int64_t kKrea2Sample = 128;

/// The tensors of a block. Those of the text alone are not modulated, and whole in every shard.
void add_krea2_block(TensorTable& table, const Krea2Sizes& of, const std::string& prefix,
                     bool of_text) {
  const auto widen = [&](const std::string& name, std::int64_t out, std::int64_t units) {
    of_text ? table.linear(prefix + name, of.width, out, false)
            : table.split_outputs(prefix + name, of.width, out, units, false);
  };
  const auto narrow = [&](const std::string& name, std::int64_t in, std::int64_t units) {
    of_text ? table.linear(prefix + name, in, of.width, false)
            : table.split_inputs(prefix + name, in, of.width, units, false);
  };
  if (!of_text) table.add(prefix + "scale_shift_table", {6, of.width});
  for (const char* norm : {"norm1.weight", "norm2.weight"})
    table.add(prefix + norm, {of.width});
  for (const char* product : {"attn.to_q", "attn.to_gate"})
    widen(product, of.width, of.heads);
  for (const char* product : {"attn.to_k", "attn.to_v"}) {
    of_text ? table.linear(prefix + product, of.width, of.kv_width(), false)
            : table.split_groups(prefix + product, of.width, of.kv_width(), of.heads, of.group());
  }
  for (const char* norm : {"attn.norm_q.weight", "attn.norm_k.weight"})
    table.add(prefix + norm, {of.head_dim()});
  narrow("attn.to_out.0", of.width, of.heads);
  for (const char* product : {"ff.gate", "ff.up"})
    widen(product, of.feed_forward, of.feed_forward);
  narrow("ff.down", of.feed_forward, of.feed_forward);
}

}  // namespace

double Krea2Sizes::weights() const {
  // Queries, their gate and the output, keys and values, and the three of the feed-forward.
  return static_cast<double>(width) *
         static_cast<double>(3 * width + 2 * kv_width() + 3 * feed_forward);
}

Krea2Sizes Krea2Spec::block() const {
  return {inner_dim(), num_attention_heads, num_key_value_heads, intermediate_size, norm_eps};
}

Krea2Sizes Krea2Spec::text_block() const {
  return {text_hidden_dim, text_num_attention_heads, text_num_key_value_heads,
          text_intermediate_size, norm_eps};
}

Krea2Spec Krea2Spec::read(const ConfigReader& config) {
  Krea2Spec spec;
  const auto size = [&config](const char* key, std::int64_t& value) {
    value = config.integer_or(key, value, 1, kMaxWidth);
  };
  const auto count = [&config](const char* key, std::int64_t& value, std::int64_t least) {
    value = config.integer_or(key, value, least, kMaxBlocks);
  };
  size("in_channels", spec.in_channels);
  count("num_layers", spec.num_layers, 1);
  size("attention_head_dim", spec.attention_head_dim);
  size("num_attention_heads", spec.num_attention_heads);
  size("num_key_value_heads", spec.num_key_value_heads);
  size("intermediate_size", spec.intermediate_size);
  size("timestep_embed_dim", spec.timestep_embed_dim);
  size("text_hidden_dim", spec.text_hidden_dim);
  count("num_text_layers", spec.num_text_layers, 1);
  size("text_num_attention_heads", spec.text_num_attention_heads);
  size("text_num_key_value_heads", spec.text_num_key_value_heads);
  size("text_intermediate_size", spec.text_intermediate_size);
  count("num_layerwise_text_blocks", spec.num_layerwise_text_blocks, 0);
  count("num_refiner_text_blocks", spec.num_refiner_text_blocks, 0);
  if (config.has_value("axes_dims_rope")) spec.axes_dims_rope = config.integers("axes_dims_rope");
  config.harmless({"axes_dims_rope"});
  spec.rope_theta = config.number_or("rope_theta", spec.rope_theta);
  spec.norm_eps = config.number_or("norm_eps", spec.norm_eps);
  config.finish();
  if (spec.inner_dim() > kMaxWidth) config.refuse("attention_head_dim", "makes blocks too wide");
  if (spec.in_channels % (kKrea2Patch * kKrea2Patch) != 0)
    config.refuse("in_channels", "must be a multiple of 4: a token is four latent pixels");
  if (spec.timestep_embed_dim % 2 != 0) config.refuse("timestep_embed_dim", "must be even");
  const auto divides = [&](const char* key, std::int64_t part, std::int64_t whole, const char* of) {
    if (whole % part != 0) config.refuse(key, fmt::format("must divide {}, {}", of, whole));
  };
  divides("num_key_value_heads", spec.num_key_value_heads, spec.num_attention_heads,
          "num_attention_heads");
  divides("text_num_attention_heads", spec.text_num_attention_heads, spec.text_hidden_dim,
          "text_hidden_dim");
  divides("text_num_key_value_heads", spec.text_num_key_value_heads, spec.text_num_attention_heads,
          "text_num_attention_heads");
  if (!divides_head(spec.axes_dims_rope, spec.attention_head_dim)) {
    config.refuse("axes_dims_rope",
                  fmt::format("must be three even numbers that add up to the head size, {}",
                              spec.attention_head_dim));
  }
  if (!(spec.rope_theta > 1)) config.refuse("rope_theta", "must be above 1");
  if (!(spec.norm_eps > 0 && spec.norm_eps < 1))
    config.refuse("norm_eps", "must be between 0 and 1");
  return spec;
}

std::string krea2_block_prefix(std::int64_t block) {
  return fmt::format("transformer_blocks.{}.", block);
}

std::string krea2_layerwise_prefix(std::int64_t block) {
  return fmt::format("text_fusion.layerwise_blocks.{}.", block);
}

std::string krea2_refiner_prefix(std::int64_t block) {
  return fmt::format("text_fusion.refiner_blocks.{}.", block);
}

std::vector<PlannedTensor> planned_tensors(const Krea2Spec& spec) {
  const std::int64_t width = spec.inner_dim(), text = spec.text_hidden_dim;
  TensorTable table;
  table.at(Held::first);
  table.linear("img_in", spec.in_channels, width);
  for (std::int64_t block = 0; block < spec.num_layerwise_text_blocks; ++block)
    add_krea2_block(table, spec.text_block(), krea2_layerwise_prefix(block), true);
  table.add("text_fusion.projector.weight", {1, spec.num_text_layers});
  for (std::int64_t block = 0; block < spec.num_refiner_text_blocks; ++block)
    add_krea2_block(table, spec.text_block(), krea2_refiner_prefix(block), true);
  table.add("txt_in.norm.weight", {text});
  table.linear("txt_in.linear_1", text, width);
  table.linear("txt_in.linear_2", width, width);
  table.at(Held::everywhere);
  table.linear("time_embed.linear_1", spec.timestep_embed_dim, width);
  table.linear("time_embed.linear_2", width, width);
  table.linear("time_mod_proj", width, 6 * width);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    add_krea2_block(table, spec.block(), krea2_block_prefix(block), false);
  }
  table.at(Held::last);
  table.add("final_layer.scale_shift_table", {2, width});
  table.add("final_layer.norm.weight", {width});
  table.linear("final_layer.linear", width, spec.in_channels);
  return table.take();
}

TransformerFacts facts_of(const Krea2Spec& spec) {
  TransformerFacts facts;
  facts.num_layers = spec.num_layers;
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.in_channels / (kKrea2Patch * kKrea2Patch);
  facts.out_channels = facts.in_channels;
  facts.patch_size = kKrea2Patch;
  facts.sample_size = kKrea2Sample;
  facts.caption_width = spec.inner_dim();
  facts.joint = true;
  facts.pads_text = false;
  const BlockFacts block{.weights = spec.block().weights(), .all_sums = 2};
  facts.blocks.assign(static_cast<std::size_t>(spec.num_layers), block);
  // The text goes through blocks of its own once a job, which the first stage has: through the
  // first of them with the states of each layer.
  const auto width = static_cast<double>(spec.inner_dim());
  const auto of_states = static_cast<double>(spec.num_layerwise_text_blocks * spec.num_text_layers);
  facts.blocks.front().caption_weights =
      (of_states + static_cast<double>(spec.num_refiner_text_blocks)) *
          spec.text_block().weights() +
      width * (width + static_cast<double>(spec.text_hidden_dim));
  return facts;
}

void check_fit(const Krea2Spec& spec, const FitCheck& fit) {
  fit.require("text_hidden_dim", spec.text_hidden_dim, "text_encoder hidden_size",
              fit.qwen(0).hidden_size);
  fit.require("num_text_layers", spec.num_text_layers, "numbers in text_encoder_select_layers",
              std::ssize(fit.qwen(0).taken_layers));
}

std::vector<Pipeline> Krea2Spec::pipelines() {
  // Source: Krea2Pipeline's prompt_template_encode_prefix and the numbers beside it.
  return {{.name = "Krea2Pipeline",
           .encoders = {{.component = "text_encoder",
                         .tokenizer = "tokenizer",
                         .classes = kQwen3Vl,
                         .tokenizer_classes = kQwenTokenizers,
                         .use = TextUse::masked_states,
                         .frame = {.before = kQwenImageBefore,
                                   .after = kQwenAfter,
                                   .dropped = 34,
                                   .kept_after = 5},
                         .layers = {2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 35},
                         .layers_key = "text_encoder_select_layers"}},
           .text_tokens = 512,
           .defaults = {{28, 4.5}},
           .even_sigmas = true,
           .may_be_distilled = true,
           .distilled_shift = kKrea2DistilledShift,
           .patch_size = kKrea2Patch,
           .adds_guidance = true,
           .from_text_alone = true,
           .vae = "AutoencoderKLQwenImage"}};
}

}  // namespace troupe::spec
