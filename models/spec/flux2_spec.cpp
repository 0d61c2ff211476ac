#include "models/spec/flux2_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

/// Side of a picture in tokens of 16 × 16 pixels. Source: Flux2KleinPipeline, which makes 1024 ×
/// 1024 pixels.
constexpr std::int64_t kFlux2SampleSize = 64;

/// Numbers of the text encoder's layers whose states are taken. Source: Flux2KleinPipeline's
/// text_encoder_out_layers.
const std::vector<std::int64_t> kKleinLayers = {9, 18, 27};

}  // namespace

std::int64_t Flux2Spec::feed_forward() const {
  return static_cast<std::int64_t>(static_cast<double>(inner_dim()) * mlp_ratio);
}

JointBlockShape Flux2Spec::joint_block() const {
  return {.width = inner_dim(),
          .heads = num_attention_heads,
          .head_dim = attention_head_dim,
          .qk_norm = true,
          .clips_half = true,
          .modulates = false,
          .bias = false,
          .gated_forward = feed_forward(),
          .names = {.widen = "linear_in", .narrow = "linear_out"}};
}

Flux2Spec Flux2Spec::read(const ConfigReader& config) {
  Flux2Spec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  config.only("patch_size", 1);
  config.only("timestep_guidance_channels", kTimeFrequencies);
  config.only("eps", 1e-6);
  // A config without the key means true, and the guidance embedding of FLUX.2-dev.
  if (config.boolean_or("guidance_embeds", true)) {
    config.refuse("guidance_embeds",
                  "is not supported: the model takes its guidance as FLUX.2-dev, and "
                  "FLUX.2-klein, which has false, is served");
  }
  spec.in_channels = size("in_channels", spec.in_channels);
  const std::int64_t out =
      config.has_value("out_channels") ? size("out_channels", 128) : spec.in_channels;
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 0, kMaxBlocks);
  spec.num_single_layers =
      config.integer_or("num_single_layers", spec.num_single_layers, 0, kMaxBlocks);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.joint_attention_dim = size("joint_attention_dim", spec.joint_attention_dim);
  spec.mlp_ratio = config.number_or("mlp_ratio", spec.mlp_ratio);
  spec.rope_theta = config.number_or("rope_theta", spec.rope_theta);
  if (config.has_value("axes_dims_rope")) spec.axes_dims_rope = config.integers("axes_dims_rope");
  config.harmless({"axes_dims_rope", "out_channels"});
  config.finish();
  if (spec.inner_dim() > kMaxWidth) config.refuse("attention_head_dim", "makes blocks too wide");
  if (spec.blocks() == 0) config.refuse("num_layers", "leaves no block");
  if (out != spec.in_channels) config.refuse("out_channels", "must be the same as in_channels");
  if (!(spec.mlp_ratio > 0) || spec.feed_forward() < 1 || spec.feed_forward() > kMaxWidth)
    config.refuse("mlp_ratio", "makes feed-forwards of no width, or too wide");
  if (!(spec.rope_theta > 1)) config.refuse("rope_theta", "must be above 1");
  const auto& axes = spec.axes_dims_rope;
  const auto even = [](std::int64_t width) { return width > 0 && width % 2 == 0; };
  if (axes.size() != 4 || !std::ranges::all_of(axes, even) ||
      std::accumulate(axes.begin(), axes.end(), std::int64_t{0}) != spec.attention_head_dim) {
    config.refuse("axes_dims_rope",
                  fmt::format("must be four even numbers that add up to the head size, {}",
                              spec.attention_head_dim));
  }
  return spec;
}

std::vector<PlannedTensor> planned_tensors(const Flux2Spec& spec) {
  const std::int64_t width = spec.inner_dim(), wide = spec.feed_forward();
  TensorTable table;
  table.at(Held::first);
  table.linear("x_embedder", spec.in_channels, width, false);
  table.linear("context_embedder", spec.joint_attention_dim, width, false);
  table.at(Held::everywhere);
  const std::string time = "time_guidance_embed.timestep_embedder.";
  table.linear(time + "linear_1", kTimeFrequencies, width, false);
  table.linear(time + "linear_2", width, width, false);
  table.linear("double_stream_modulation_img.linear", width, 6 * width, false);
  table.linear("double_stream_modulation_txt.linear", width, 6 * width, false);
  table.linear("single_stream_modulation.linear", width, 3 * width, false);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    add_joint_block(table, fmt::format("transformer_blocks.{}.", block), spec.joint_block());
  }
  const std::int64_t heads = spec.num_attention_heads;
  for (std::int64_t block = 0; block < spec.num_single_layers; ++block) {
    table.at(Held::block, spec.num_layers + block);
    const std::string prefix = fmt::format("single_transformer_blocks.{}.attn.", block);
    table.split_outputs(prefix + "to_qkv_mlp_proj", width, 3 * width, heads, false, 2 * wide, wide);
    table.add(prefix + "norm_q.weight", {spec.attention_head_dim});
    table.add(prefix + "norm_k.weight", {spec.attention_head_dim});
    table.split_inputs(prefix + "to_out", width, width, heads, false, wide, wide);
  }
  table.at(Held::last);
  table.linear("norm_out.linear", width, 2 * width, false);
  table.linear("proj_out", width, spec.in_channels, false);
  return table.take();
}

TransformerFacts facts_of(const Flux2Spec& spec) {
  const auto width = static_cast<double>(spec.inner_dim());
  TransformerFacts facts;
  facts.num_layers = spec.blocks();
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.in_channels;
  facts.out_channels = spec.in_channels;
  facts.sample_size = kFlux2SampleSize;
  facts.caption_width = spec.inner_dim();
  facts.joint = true;
  facts.guidance = spec.is_distilled ? GuidanceKind::none : GuidanceKind::branches;
  const double weights = 4 * width * width + 3 * width * static_cast<double>(spec.feed_forward());
  const BlockFacts two_streams{.weights = weights, .picture_sums = 2, .text_sums = 2};
  const BlockFacts one_stream{.weights = weights, .all_sums = 1, .more_quantized_sums = 1};
  facts.blocks.assign(static_cast<std::size_t>(spec.num_layers), two_streams);
  facts.blocks.insert(facts.blocks.end(), static_cast<std::size_t>(spec.num_single_layers),
                      one_stream);
  return facts;
}

void check_fit(const Flux2Spec& spec, const FitCheck& fit) {
  fit.require("joint_attention_dim", spec.joint_attention_dim,
              "the states of three layers of the text_encoder", fit.qwen(0).states_width());
}

std::vector<Pipeline> Flux2Spec::pipelines() {
  return {
      {.name = "Flux2KleinPipeline",
       .encoders = {{.component = "text_encoder",
                     .tokenizer = "tokenizer",
                     .classes = kQwen3,
                     .tokenizer_classes = kQwenTokenizers,
                     .use = TextUse::padded_states,
                     .frame = kQwenChatWithoutThinking,
                     .layers = kKleinLayers}},
       .text_tokens = 512,
       .defaults = {{50, 4}},
       .even_sigmas = true,
       .shifts_by_steps = true,
       .may_be_distilled = true,
       .from_text_alone = true,
       .inputs = {.images = PictureRole::edited,
                  .most_images = 4,
                  .sized_by = EditedSides::first,
                  .least_side = 64,
                  .most_ratio = 8},
       .vae = kPatchedVae},
  };
}

}  // namespace troupe::spec
