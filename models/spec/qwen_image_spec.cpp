#include "models/spec/qwen_image_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/pipelines.h"
#include "models/spec/sd3_spec.h"

namespace troupe::spec {
namespace {

/// Source: QwenImagePipeline's default_sample_size.
constexpr std::int64_t kQwenImageSample = 128;

/// Source: QwenImagePipeline's prompt_template_encode and prompt_template_encode_start_idx.
const PromptFrame kQwenImageFrame = {
    .before =
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
        "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
        "<|im_start|>user\n",
    .after = "<|im_end|>\n<|im_start|>assistant\n",
    .dropped = 34};

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
  for (const char* key :
       {"guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope"})
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
  return {
      {.name = "QwenImagePipeline",
       .encoders = {{.component = "text_encoder",
                     .tokenizer = "tokenizer",
                     .classes = kQwen25Vl,
                     .tokenizer_classes = kQwenTokenizers,
                     .use = TextUse::masked_states,
                     .frame = kQwenImageFrame}},
       .text_tokens = 512,
       .defaults = {{50, 4}},
       .even_sigmas = true,
       .guided_by_negative = true,
       .renorm = GuidanceRenorm::of_text,
       .from_text_alone = true,
       .vae = "AutoencoderKLQwenImage"},
  };
}

}  // namespace troupe::spec
