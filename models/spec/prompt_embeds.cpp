#include "models/spec/prompt_embeds.h"

namespace troupe::spec {
namespace {

using TensorKind = PromptTensor::Kind;

std::vector<PromptTensor> tensors_of(const PixArtSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.caption_channels},
          {.name = "prompt_attention_mask", .kind = TensorKind::mask}};
}

std::vector<PromptTensor> tensors_of(const Sd3Spec& spec) {
  return {{.name = "prompt_embeds", .width = spec.joint_attention_dim},
          {.name = "pooled_prompt_embeds",
           .kind = TensorKind::pooled,
           .width = spec.pooled_projection_dim}};
}

std::vector<PromptTensor> tensors_of(const FluxSpec& spec) {
  return {{.name = "pooled_prompt_embeds",
           .kind = TensorKind::pooled,
           .width = spec.pooled_projection_dim},
          {.name = "prompt_embeds", .width = spec.joint_attention_dim, .output = 1}};
}

std::vector<PromptTensor> tensors_of(const HunyuanSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.cross_attention_dim, .tokens = spec.text_len},
          {.name = "prompt_attention_mask", .kind = TensorKind::mask, .tokens = spec.text_len},
          {.name = "prompt_embeds_2",
           .width = spec.cross_attention_dim_t5,
           .tokens = spec.text_len_t5,
           .output = 1},
          {.name = "prompt_attention_mask_2",
           .kind = TensorKind::mask,
           .tokens = spec.text_len_t5,
           .output = 1}};
}

std::vector<PromptTensor> tensors_of(const UNetSpec& spec) {
  std::vector<PromptTensor> tensors = {
      {.name = "prompt_embeds", .width = spec.cross_attention_dim}};
  if (spec.pooled_width() > 0) {
    tensors.push_back(
        {.name = "pooled_prompt_embeds", .kind = TensorKind::pooled, .width = spec.pooled_width()});
  }
  return tensors;
}

std::vector<PromptTensor> tensors_of(const WanSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.text_dim}};
}

std::vector<PromptTensor> tensors_of(const UserSpec& spec) {
  return spec.transformer->prompt_tensors();
}

}  // namespace

std::vector<PromptTensor> prompt_tensors(const ModelSpec& model) {
  return std::visit([](const auto& family) { return tensors_of(family); },
                    model.transformer.family);
}

}  // namespace troupe::spec
