#include "models/spec/flux_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"

namespace troupe::spec {
namespace {

/// Latent pixels along a side of a token. Source: FluxPipeline packs latents two by two.
constexpr std::int64_t kPatch = 2;
/// Source: FluxPipeline's default_sample_size.
constexpr std::int64_t kSampleSize = 128;

/// Text around a prompt, whose first 28 tokens' states are dropped. Source: OvisImagePipeline's
/// system_prompt and user_prompt_begin_id.
const PromptFrame kOvisFrame = {
    kQwenChatWithoutThinking.before +
        "Describe the image by detailing the color, quantity, text, shape, size, texture, spatial "
        "relationships of the objects and background: ",
    kQwenChatWithoutThinking.after, ChatTemplate::unthought_answer, 28};

std::int64_t size_of(const ConfigReader& config, const char* key, std::int64_t fallback) {
  return config.integer_or(key, fallback, 1, kMaxWidth);
}

/// Text before a prompt, whose tokens are dropped; what the pipeline puts after it nobody sees.
/// Source: LongCatImagePipeline's prompt_template_encode_prefix.
const PromptFrame kLongCatFrame = {
    .before =
        "<|im_start|>system\nAs an image captioning expert, generate a descriptive text prompt "
        "based on an image content, suitable for input to a text-to-image "
        "model.<|im_end|>\n<|im_start|>user\n",
    .after = "",
    .spells_quotes = true};

/// Reads what all models of FLUX.1's blocks have in common, and refuses all other keys that were
/// not read before.
void read_common(FluxSpec& spec, const ConfigReader& config) {
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return size_of(config, key, fallback);
  };
  config.only("patch_size", 1);
  spec.in_channels = size("in_channels", spec.in_channels);
  spec.out_channels =
      config.has_value("out_channels") ? size("out_channels", 64) : spec.in_channels;
  config.harmless({"out_channels"});
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 0, kMaxBlocks);
  spec.num_single_layers =
      config.integer_or("num_single_layers", spec.num_single_layers, 0, kMaxBlocks);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.joint_attention_dim = size("joint_attention_dim", spec.joint_attention_dim);
  if (config.has_value("axes_dims_rope")) spec.axes_dims_rope = config.integers("axes_dims_rope");
  config.harmless({"axes_dims_rope"});
  config.finish();
  if (spec.inner_dim() > kMaxWidth) config.refuse("attention_head_dim", "makes blocks too wide");
  if (spec.blocks() == 0) config.refuse("num_layers", "leaves no block");
  if (spec.in_channels % 4 != 0 || spec.out_channels % 4 != 0 ||
      spec.in_channels < spec.out_channels ||
      (spec.in_channels > spec.out_channels && spec.kind != FluxKind::flux)) {
    config.refuse("in_channels",
                  "must be a multiple of 4, and out_channels the same, or fewer in "
                  "FLUX.1's models that take pictures beside the latents");
  }
  if (!divides_head(spec.axes_dims_rope, spec.attention_head_dim)) {
    config.refuse("axes_dims_rope",
                  fmt::format("must be three even numbers that add up to the head size, {}",
                              spec.attention_head_dim));
  }
}

/// Adds the layers that make what modulates the blocks from timestep, guidance and text.
void add_embedders(TensorTable& table, const FluxSpec& spec) {
  const std::int64_t width = spec.inner_dim();
  if (const std::string name = spec.timestep_embedder(); !name.empty()) {
    table.linear(name + ".linear_1", kTimeFrequencies, width);
    return table.linear(name + ".linear_2", width, width);
  }
  std::vector<std::pair<std::string, std::int64_t>> embedders = {
      {"timestep_embedder", kTimeFrequencies}, {"text_embedder", spec.pooled_projection_dim}};
  if (spec.guidance_embeds) embedders.push_back({"guidance_embedder", kTimeFrequencies});
  for (const auto& [name, in] : embedders) {
    table.linear("time_text_embed." + name + ".linear_1", in, width);
    table.linear("time_text_embed." + name + ".linear_2", width, width);
  }
}

void add_approximator(TensorTable& table, const ApproximatorSpec& spec, std::int64_t width) {
  const std::string prefix = "distilled_guidance_layer.";
  table.linear(prefix + "in_proj", spec.num_channels, spec.hidden_dim);
  for (std::int64_t layer = 0; layer < spec.layers; ++layer) {
    const std::string name = fmt::format("{}layers.{}.linear_", prefix, layer);
    table.linear(name + "1", spec.hidden_dim, spec.hidden_dim);
    table.linear(name + "2", spec.hidden_dim, spec.hidden_dim);
    table.add(fmt::format("{}norms.{}.weight", prefix, layer), {spec.hidden_dim});
  }
  table.linear(prefix + "out_proj", spec.hidden_dim, width);
}

}  // namespace

FluxSpec FluxSpec::read(const ConfigReader& config) {
  FluxSpec spec;
  spec.pooled_projection_dim = size_of(config, "pooled_projection_dim", spec.pooled_projection_dim);
  spec.guidance_embeds = config.boolean_or("guidance_embeds", spec.guidance_embeds);
  read_common(spec, config);
  return spec;
}

ChromaSpec ChromaSpec::read(const ConfigReader& config) {
  ChromaSpec spec;
  spec.pooled_projection_dim = 0;
  ApproximatorSpec own;
  own.num_channels = size_of(config, "approximator_num_channels", own.num_channels);
  own.hidden_dim = size_of(config, "approximator_hidden_dim", own.hidden_dim);
  own.layers = config.integer_or("approximator_layers", own.layers, 1, kMaxBlocks);
  read_common(spec, config);
  // A quarter is sines of the timestep, and sines come in pairs.
  if (own.num_channels % 8 != 0)
    config.refuse("approximator_num_channels", "must be a multiple of 8");
  spec.approximator = own;
  return spec;
}

OvisImageSpec OvisImageSpec::read(const ConfigReader& config) {
  OvisImageSpec spec;
  spec.kind = FluxKind::ovis;
  spec.num_layers = 6;
  spec.num_single_layers = 27;
  spec.joint_attention_dim = 2048;
  spec.pooled_projection_dim = 0;
  read_common(spec, config);
  return spec;
}

LongCatImageSpec LongCatImageSpec::read(const ConfigReader& config) {
  LongCatImageSpec spec;
  spec.kind = FluxKind::longcat;
  spec.joint_attention_dim = 3584;
  spec.pooled_projection_dim = 0;
  config.harmless({"pooled_projection_dim"});
  read_common(spec, config);
  return spec;
}

std::string FluxSpec::timestep_embedder() const {
  if (kind == FluxKind::ovis) return "timestep_embedder";
  return kind == FluxKind::longcat ? "time_embed.timestep_embedder" : "";
}

JointBlockShape FluxSpec::joint_block() const {
  return {.width = inner_dim(),
          .heads = num_attention_heads,
          .head_dim = attention_head_dim,
          .qk_norm = true,
          .clips_half = true,
          .modulates = !approximator,
          .gated_forward = gates() ? feed_forward() : 0,
          .gate_last = gates()};
}

std::vector<PlannedTensor> planned_tensors(const FluxSpec& spec) {
  const std::int64_t width = spec.inner_dim(), heads = spec.num_attention_heads;
  const std::int64_t wide = spec.feed_forward();
  TensorTable table;
  table.at(Held::first);
  table.linear("x_embedder", spec.in_channels, width);
  if (spec.norms_text()) table.add("context_embedder_norm.weight", {spec.joint_attention_dim});
  table.linear("context_embedder", spec.joint_attention_dim, width);
  table.at(Held::everywhere);
  if (spec.approximator)
    add_approximator(table, *spec.approximator, width);
  else
    add_embedders(table, spec);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    add_joint_block(table, fmt::format("transformer_blocks.{}.", block), spec.joint_block());
  }
  for (std::int64_t block = 0; block < spec.num_single_layers; ++block) {
    table.at(Held::block, spec.num_layers + block);
    const std::string prefix = fmt::format("single_transformer_blocks.{}.", block);
    if (!spec.approximator) table.linear(prefix + "norm.linear", width, 3 * width);
    for (const char* projection : {"attn.to_q", "attn.to_k", "attn.to_v"})
      table.split_outputs(prefix + projection, width, width, heads);
    table.add(prefix + "attn.norm_q.weight", {spec.attention_head_dim});
    table.add(prefix + "attn.norm_k.weight", {spec.attention_head_dim});
    table.split_outputs(prefix + "proj_mlp", width, spec.gates() ? 2 * wide : wide, wide);
    table.split_inputs(prefix + "proj_out", width, width, heads, true, wide, wide);
  }
  table.at(Held::last);
  if (!spec.approximator) table.linear("norm_out.linear", width, 2 * width);
  table.linear("proj_out", width, spec.out_channels);
  return table.take();
}

TransformerFacts facts_of(const FluxSpec& spec) {
  const auto width = static_cast<double>(spec.inner_dim());
  TransformerFacts facts;
  facts.num_layers = spec.blocks();
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.latent_channels();
  facts.beside_channels = (spec.in_channels - spec.out_channels) / 4;
  facts.out_channels = spec.latent_channels();
  facts.patch_size = kPatch;
  facts.sample_size = kSampleSize;
  facts.caption_width = spec.inner_dim();
  facts.pooled_width = spec.pooled_projection_dim;
  facts.joint = true;
  facts.pads_text = !spec.approximator;
  const bool timed = spec.approximator || !spec.timestep_embedder().empty();
  facts.guidance = timed                  ? GuidanceKind::branches
                   : spec.guidance_embeds ? GuidanceKind::embedded
                                          : GuidanceKind::none;
  const double weights = (spec.gates() ? 16 : 12) * width * width;
  const BlockFacts two_streams{.weights = weights, .picture_sums = 2, .text_sums = 2};
  const BlockFacts one_stream{.weights = weights, .all_sums = 1, .more_quantized_sums = 1};
  facts.blocks.assign(static_cast<std::size_t>(spec.num_layers), two_streams);
  facts.blocks.insert(facts.blocks.end(), static_cast<std::size_t>(spec.num_single_layers),
                      one_stream);
  return facts;
}

void check_fit(const FluxSpec& spec, const FitCheck& fit) {
  fit.require("pooled_projection_dim", spec.pooled_projection_dim, "text_encoder's vector",
              fit.clip(0).pooled_size());
  fit.require("joint_attention_dim", spec.joint_attention_dim, "text_encoder_2 d_model",
              fit.t5(1).d_model);
}

void check_fit(const ChromaSpec& spec, const FitCheck& fit) {
  fit.require("joint_attention_dim", spec.joint_attention_dim, "text_encoder d_model",
              fit.t5(0).d_model);
}

void check_fit(const OvisImageSpec& spec, const FitCheck& fit) {
  fit.require("joint_attention_dim", spec.joint_attention_dim, "text_encoder hidden_size",
              fit.qwen(0).hidden_size);
}

void check_fit(const LongCatImageSpec& spec, const FitCheck& fit) {
  fit.require("joint_attention_dim", spec.joint_attention_dim, "text_encoder hidden_size",
              fit.qwen(0).hidden_size);
}

std::vector<Pipeline> FluxSpec::pipelines() {
  const std::vector<EncoderRole> encoders = {
      {"text_encoder", "tokenizer", kClip, kClipTokenizers, TextUse::pooled, kClipTokens},
      {"text_encoder_2", "tokenizer_2", kT5, kT5Tokenizers, TextUse::states}};
  return {
      {.name = "FluxPipeline",
       .encoders = encoders,
       .text_tokens = 512,
       .defaults = {{28, 3.5}, {28, 7, 0.6}, {28, 7, 0.6}},
       .even_sigmas = true,
       .textual_inversion = true},
      {.name = "FluxKontextPipeline",
       .encoders = encoders,
       .text_tokens = 512,
       .defaults = {{28, 3.5}},
       .even_sigmas = true,
       .from_text_alone = true,
       .inputs = {.images = PictureRole::edited, .most_images = 1, .edited = EditedFit::trained},
       .textual_inversion = true},
      {.name = "FluxFillPipeline",
       .encoders = encoders,
       .text_tokens = 512,
       .defaults = {{50, 30, 1}},
       .even_sigmas = true,
       .inputs = {.beside = BesideLatents::masked_picture_and_pixels},
       .textual_inversion = true},
      {.name = "FluxControlPipeline",
       .encoders = encoders,
       .text_tokens = 512,
       .defaults = {{28, 3.5}, {28, 7, 0.6}, {28, 7, 0.6}},
       .even_sigmas = true,
       .inputs = {.control_images = 1, .beside = BesideLatents::control_picture},
       .textual_inversion = true},
  };
}

std::vector<Pipeline> ChromaSpec::pipelines() {
  return {
      {.name = "ChromaPipeline",
       .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers, TextUse::once_padded_states}},
       .text_tokens = 512,
       .defaults = {{35, 5}, {35, 5, 0.9}, {28, 7, 0.6}},
       .even_sigmas = true,
       .textual_inversion = true},
  };
}

std::vector<Pipeline> LongCatImageSpec::pipelines() {
  return {
      {.name = "LongCatImagePipeline",
       .encoders = {{.component = "text_encoder",
                     .tokenizer = "tokenizer",
                     .classes = kQwen25Vl,
                     .tokenizer_classes = kQwenTokenizers,
                     .use = TextUse::padded_states,
                     .frame = kLongCatFrame}},
       .text_tokens = kLongCatTextTokens,
       .defaults = {{50, 4.5}},
       .even_sigmas = true,
       .renorm = GuidanceRenorm::shorten,
       .from_text_alone = true},
  };
}

std::vector<Pipeline> OvisImageSpec::pipelines() {
  return {
      {.name = "OvisImagePipeline",
       .encoders = {{.component = "text_encoder",
                     .tokenizer = "tokenizer",
                     .classes = kQwen3,
                     .tokenizer_classes = kQwenTokenizers,
                     .use = TextUse::zeroed_states,
                     .frame = kOvisFrame}},
       .text_tokens = 256,
       .defaults = {{50, 5}},
       .even_sigmas = true,
       .from_text_alone = true},
  };
}

}  // namespace troupe::spec
