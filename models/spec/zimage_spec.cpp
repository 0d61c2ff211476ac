#include "models/spec/zimage_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

/// Source: ADALN_EMBED_DIM and SEQ_MULTI_OF of diffusers.
constexpr std::int64_t kConditionWidth = 256;
constexpr std::int64_t kTokenMultiple = 32;
/// Source: ZImagePipeline, which makes 1024 × 1024 pixels.
constexpr std::int64_t kZImageSampleSize = 128;

/// The tensors of a block. Those of the text alone are not modulated, and whole in every shard.
void add_block(TensorTable& table, const ZImageSpec& spec, const std::string& prefix,
               bool of_text) {
  const std::int64_t width = spec.dim, wide = spec.feed_forward();
  const auto widen = [&](const std::string& name, std::int64_t out, std::int64_t units) {
    of_text ? table.linear(prefix + name, width, out, false)
            : table.split_outputs(prefix + name, width, out, units, false);
  };
  const auto narrow = [&](const std::string& name, std::int64_t in, std::int64_t units) {
    of_text ? table.linear(prefix + name, in, width, false)
            : table.split_inputs(prefix + name, in, width, units, false);
  };
  for (const char* product : {"attention.to_q", "attention.to_k", "attention.to_v"})
    widen(product, width, spec.n_heads);
  narrow("attention.to_out.0", width, spec.n_heads);
  table.add(prefix + "attention.norm_q.weight", {spec.head_dim()});
  table.add(prefix + "attention.norm_k.weight", {spec.head_dim()});
  widen("feed_forward.w1", wide, wide);
  widen("feed_forward.w3", wide, wide);
  narrow("feed_forward.w2", wide, wide);
  for (const char* norm : {"attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"})
    table.add(prefix + norm + ".weight", {width});
  if (!of_text) table.linear(prefix + "adaLN_modulation.0", spec.condition_width(), 4 * width);
}

}  // namespace

std::int64_t ZImageSpec::feed_forward() const {
  return static_cast<std::int64_t>(static_cast<double>(dim) / 3 * 8);
}

std::int64_t ZImageSpec::condition_width() const {
  return std::min(dim, kConditionWidth);
}

ZImageSpec ZImageSpec::read(const ConfigReader& config) {
  ZImageSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  config.only("all_patch_size", nlohmann::json::array({kZImagePatch}));
  config.only("all_f_patch_size", nlohmann::json::array({1}));
  config.only("qk_norm", true);
  config.harmless({"siglip_feat_dim", "n_kv_heads"});
  if (config.has_value("siglip_feat_dim"))
    config.refuse("siglip_feat_dim", "is not supported: pictures to edit are not taken");
  spec.in_channels = size("in_channels", spec.in_channels);
  spec.dim = size("dim", spec.dim);
  spec.n_layers = config.integer_or("n_layers", spec.n_layers, 1, kMaxBlocks);
  spec.n_refiner_layers =
      config.integer_or("n_refiner_layers", spec.n_refiner_layers, 1, kMaxBlocks);
  spec.n_heads = size("n_heads", spec.n_heads);
  spec.cap_feat_dim = size("cap_feat_dim", spec.cap_feat_dim);
  spec.norm_eps = config.number_or("norm_eps", spec.norm_eps);
  spec.rope_theta = config.number_or("rope_theta", spec.rope_theta);
  spec.t_scale = config.number_or("t_scale", spec.t_scale);
  const auto three = [&config](const char* key, std::vector<std::int64_t>& values) {
    config.harmless({key});
    if (config.has_value(key)) values = config.integers(key);
    if (values.size() != 3 || std::ranges::min(values) < 1)
      config.refuse(key, "must be three numbers above 0");
  };
  three("axes_dims", spec.axes_dims);
  three("axes_lens", spec.axes_lens);
  config.finish();
  if (spec.dim % spec.n_heads != 0) config.refuse("dim", "must be a multiple of n_heads");
  const auto& axes = spec.axes_dims;
  const bool even = std::ranges::all_of(axes, [](std::int64_t width) { return width % 2 == 0; });
  if (!even || std::accumulate(axes.begin(), axes.end(), std::int64_t{0}) != spec.head_dim()) {
    config.refuse("axes_dims", fmt::format("must be even numbers that add up to the head size, {}",
                                           spec.head_dim()));
  }
  if (!(spec.norm_eps > 0 && spec.norm_eps < 1))
    config.refuse("norm_eps", "must be between 0 and 1");
  if (!(spec.rope_theta > 1)) config.refuse("rope_theta", "must be above 1");
  return spec;
}

std::string zimage_block_prefix(const ZImageSpec& spec, std::int64_t block) {
  return block < spec.n_refiner_layers ? fmt::format("noise_refiner.{}.", block)
                                       : fmt::format("layers.{}.", block - spec.n_refiner_layers);
}

std::string zimage_text_prefix(std::int64_t block) {
  return fmt::format("context_refiner.{}.", block);
}

std::vector<PlannedTensor> planned_tensors(const ZImageSpec& spec) {
  const std::int64_t cells = kZImagePatch * kZImagePatch * spec.in_channels;
  TensorTable table;
  table.at(Held::first);
  table.linear("all_x_embedder.2-1", cells, spec.dim);
  table.add("cap_embedder.0.weight", {spec.cap_feat_dim});
  table.linear("cap_embedder.1", spec.cap_feat_dim, spec.dim);
  table.add("x_pad_token", {1, spec.dim});
  table.add("cap_pad_token", {1, spec.dim});
  for (std::int64_t block = 0; block < spec.n_refiner_layers; ++block)
    add_block(table, spec, zimage_text_prefix(block), true);
  table.at(Held::everywhere);
  table.linear("t_embedder.mlp.0", kTimeFrequencies, kZImageTimeWidth);
  table.linear("t_embedder.mlp.2", kZImageTimeWidth, spec.condition_width());
  for (std::int64_t block = 0; block < spec.blocks(); ++block) {
    table.at(Held::block, block);
    add_block(table, spec, zimage_block_prefix(spec, block), false);
  }
  table.at(Held::last);
  table.linear("all_final_layer.2-1.linear", spec.dim, cells);
  table.linear("all_final_layer.2-1.adaLN_modulation.1", spec.condition_width(), spec.dim);
  return table.take();
}

TransformerFacts facts_of(const ZImageSpec& spec) {
  const auto width = static_cast<double>(spec.dim);
  TransformerFacts facts;
  facts.num_layers = spec.blocks();
  facts.num_attention_heads = spec.n_heads;
  facts.attention_head_dim = spec.head_dim();
  facts.in_channels = spec.in_channels;
  facts.out_channels = spec.in_channels;
  facts.patch_size = kZImagePatch;
  facts.sample_size = kZImageSampleSize;
  // Texts begin at position 1, are filled up, and the picture comes behind them.
  facts.most_text_tokens = (spec.axes_lens[0] - 2) / kTokenMultiple * kTokenMultiple;
  facts.most_tokens_a_side = std::min(spec.axes_lens[1], spec.axes_lens[2]);
  facts.caption_width = spec.dim;
  facts.token_multiple = kTokenMultiple;
  facts.pads_text = false;
  facts.joint = true;
  const double weights = 4 * width * width + 3 * width * static_cast<double>(spec.feed_forward());
  // The text goes once a job through as many blocks of its own, which the first stage has.
  const BlockFacts refiner{
      .weights = weights, .caption_weights = weights, .picture_sums = 2, .without_text = true};
  const BlockFacts joint{.weights = weights, .all_sums = 2};
  facts.blocks.assign(static_cast<std::size_t>(spec.n_refiner_layers), refiner);
  facts.blocks.insert(facts.blocks.end(), static_cast<std::size_t>(spec.n_layers), joint);
  return facts;
}

void check_fit(const ZImageSpec& spec, const FitCheck& fit) {
  fit.require("cap_feat_dim", spec.cap_feat_dim, "text_encoder hidden_size",
              fit.qwen(0).hidden_size);
}

std::vector<Pipeline> ZImageSpec::pipelines() {
  return {
      {.name = "ZImagePipeline",
       .encoders = {{.component = "text_encoder",
                     .tokenizer = "tokenizer",
                     .classes = kQwen3,
                     .tokenizer_classes = kQwenTokenizers,
                     .use = TextUse::penultimate_states,
                     .frame = kQwenChat}},
       .text_tokens = 512,
       .defaults = {{50, 5.0}, {50, 5.0, 0.6}, {50, 5.0, 1.0}},
       .even_sigmas = true,
       .adds_guidance = true},
  };
}

}  // namespace troupe::spec
