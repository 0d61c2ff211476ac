#include "models/spec/qwen_image_spec.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"
#include "models/spec/sd3_spec.h"

namespace troupe::spec {
namespace {

/// Source: QwenImagePipeline's default_sample_size.
constexpr std::int64_t kQwenImageSample = 128;

/// Pixels of the pictures that the text encoder sees. Source: QwenImageEditPlusPipeline's
/// CONDITION_IMAGE_SIZE.
constexpr std::int64_t kSeenArea = 384 * 384;

/// Largest ratio of a picture's sides that their image processor takes after the sides were
/// rounded.
constexpr std::int32_t kMostEditedRatio = 128;

/// Source: QwenImagePipeline's prompt_template_encode and prompt_template_encode_start_idx.
const PromptFrame kQwenImageFrame = {
    .before = kQwenImageBefore, .after = kQwenAfter, .dropped = 34};

/// Returns the frame of the pipelines that edit, in which each picture is written as `picture`.
/// Source: QwenImageEditPipeline's and QwenImageEditPlusPipeline's prompt_template_encode.
PromptFrame edit_frame(std::string picture) {
  return {.before =
              "<|im_start|>system\nDescribe the key features of the input image (color, shape, "
              "size, texture, objects, background), then explain how the user's text "
              "instruction should alter or modify the image. Generate a new image that meets "
              "the user's requirements while maintaining consistency with the original input "
              "where appropriate.<|im_end|>\n<|im_start|>user\n",
          .after = kQwenImageFrame.after,
          .dropped = 64,
          .picture = std::move(picture)};
}

/// Returns what the pipelines have in common.
Pipeline qwen_image_pipeline(std::string name, const PromptFrame& frame) {
  return {.name = std::move(name),
          .encoders = {{.component = "text_encoder",
                        .tokenizer = "tokenizer",
                        .classes = kQwen25Vl,
                        .tokenizer_classes = kQwenTokenizers,
                        .use = TextUse::masked_states,
                        .frame = frame,
                        .processor = frame.picture.empty() ? "" : "processor"}},
          .text_tokens = 512,
          .defaults = {{50, 4}},
          .even_sigmas = true,
          .guided_by_negative = true,
          .renorm = GuidanceRenorm::of_text,
          .from_text_alone = true,
          .vae = "AutoencoderKLQwenImage"};
}

}  // namespace

QwenImageSpec QwenImageSpec::read(const ConfigReader& config) {
  QwenImageSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  // Latents are packed two by two whatever the config says.
  config.only("patch_size", spec.patch_size);
  spec.in_channels = size("in_channels", spec.in_channels);
  const std::int64_t out =
      config.has_value("out_channels") ? size("out_channels", 16) : spec.latent_channels();
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 1, kMaxBlocks);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.joint_attention_dim = size("joint_attention_dim", spec.joint_attention_dim);
  if (config.has_value("axes_dims_rope")) spec.axes_dims_rope = config.integers("axes_dims_rope");
  spec.zero_cond_t = config.boolean_or("zero_cond_t", spec.zero_cond_t);
  for (const char* key : {"guidance_embeds", "use_additional_t_cond", "use_layer3d_rope"})
    config.only(key, false);
  config.harmless({"axes_dims_rope", "out_channels", "pooled_projection_dim"});
  config.finish();
  if (spec.inner_dim() > kMaxWidth) config.refuse("attention_head_dim", "makes blocks too wide");
  if (spec.in_channels != 4 * out)
    config.refuse("in_channels", "must be 4 times out_channels: a token is four latent pixels");
  if (!divides_head(spec.axes_dims_rope, spec.attention_head_dim)) {
    config.refuse("axes_dims_rope",
                  fmt::format("must be three even numbers that add up to the head size, {}",
                              spec.attention_head_dim));
  }
  return spec;
}

std::vector<PlannedTensor> planned_tensors(const QwenImageSpec& spec) {
  const std::int64_t width = spec.inner_dim();
  TensorTable table;
  table.at(Held::first);
  table.linear("img_in", spec.in_channels, width);
  table.add("txt_norm.weight", {spec.joint_attention_dim});
  table.linear("txt_in", spec.joint_attention_dim, width);
  table.at(Held::everywhere);
  table.linear("time_text_embed.timestep_embedder.linear_1", kTimeFrequencies, width);
  table.linear("time_text_embed.timestep_embedder.linear_2", width, width);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    table.at(Held::block, block);
    add_joint_block(table, fmt::format("transformer_blocks.{}.", block),
                    {.width = width,
                     .heads = spec.num_attention_heads,
                     .head_dim = spec.attention_head_dim,
                     .qk_norm = true,
                     .names = kQwenImageNames});
  }
  table.at(Held::last);
  table.linear("norm_out.linear", width, 2 * width);
  table.linear("proj_out", width, spec.in_channels);
  return table.take();
}

TransformerFacts facts_of(const QwenImageSpec& spec) {
  const auto width = static_cast<double>(spec.inner_dim());
  TransformerFacts facts;
  facts.num_layers = spec.num_layers;
  facts.num_attention_heads = spec.num_attention_heads;
  facts.attention_head_dim = spec.attention_head_dim;
  facts.in_channels = spec.latent_channels();
  facts.out_channels = spec.latent_channels();
  facts.patch_size = spec.patch_size;
  facts.sample_size = kQwenImageSample;
  facts.caption_width = spec.inner_dim();
  facts.joint = true;
  facts.most_text_tokens = 1024;  // as its pipeline takes
  facts.pads_text = false;
  const BlockFacts block{.weights = 12 * width * width, .picture_sums = 2, .text_sums = 2};
  facts.blocks.assign(static_cast<std::size_t>(spec.num_layers), block);
  return facts;
}

void check_fit(const QwenImageSpec& spec, const FitCheck& fit) {
  fit.require("joint_attention_dim", spec.joint_attention_dim, "text_encoder hidden_size",
              fit.qwen(0).hidden_size);
}

std::vector<Pipeline> QwenImageSpec::pipelines() {
  auto one = qwen_image_pipeline("QwenImageEditPipeline",
                                 edit_frame("<|vision_start|><|image_pad|><|vision_end|>"));
  one.inputs = {.images = PictureRole::edited,
                .most_images = 1,
                .needs_images = true,
                .edited = EditedFit::of_megapixel,
                .sized_by = EditedSides::first,
                .most_ratio = kMostEditedRatio};
  auto several =
      qwen_image_pipeline("QwenImageEditPlusPipeline",
                          edit_frame("Picture {}: <|vision_start|><|image_pad|><|vision_end|>"));
  several.inputs = one.inputs;
  several.inputs.most_images = 3;
  several.inputs.sized_by = EditedSides::last;
  several.inputs.seen_area = kSeenArea;
  return {qwen_image_pipeline("QwenImagePipeline", kQwenImageFrame), std::move(one),
          std::move(several)};
}

}  // namespace troupe::spec
