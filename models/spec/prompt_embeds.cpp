#include "models/spec/prompt_embeds.h"

#include <stdexcept>

#include "base/format.h"
#include "models/spec/tensor_values.h"

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

std::vector<PromptTensor> tensors_of(const ChromaSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.joint_attention_dim},
          {.name = "prompt_attention_mask", .kind = TensorKind::mask}};
}

std::vector<PromptTensor> tensors_of(const OvisImageSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.joint_attention_dim}};
}

std::vector<PromptTensor> tensors_of(const LongCatImageSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.joint_attention_dim}};
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

std::vector<PromptTensor> tensors_of(const QwenImageSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.joint_attention_dim},
          {.name = "prompt_embeds_mask", .kind = TensorKind::mask}};
}

std::vector<PromptTensor> tensors_of(const ZImageSpec& spec) {
  return {{.name = "prompt_embeds", .width = spec.cap_feat_dim}};
}

std::vector<PromptTensor> tensors_of(const Flux2Spec& spec) {
  return {{.name = "prompt_embeds", .width = spec.joint_attention_dim}};
}

std::vector<PromptTensor> tensors_of(const Krea2Spec& spec) {
  // The pipeline's padding stands before the end of its template.
  return {{.name = "prompt_embeds", .width = spec.text_hidden_dim, .layers = spec.num_text_layers},
          {.name = "prompt_embeds_mask", .kind = TensorKind::mask, .in_any_order = true}};
}

std::vector<PromptTensor> tensors_of(const UserSpec& spec) {
  return spec.transformer->prompt_tensors();
}

constexpr std::uint64_t kMostHeader = std::uint64_t{1} << 20;
constexpr const char* kPromptEmbeds = "prompt_embeds";

}  // namespace

std::vector<PromptTensor> prompt_tensors(const ModelSpec& model) {
  return std::visit([](const auto& family) { return tensors_of(family); },
                    model.transformer.family);
}

PromptEmbedsFile parse_prompt_embeds(std::string_view bytes, const std::string& name,
                                     std::size_t most_values, std::size_t most_prompts) {
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error("[prompt embeds] " + name + ": " + why);
  };
  const auto index = WeightIndex::of_bytes(bytes, name, kMostHeader);
  const auto* prompts = index.find(kPromptEmbeds);
  if (!prompts || prompts->shape.empty()) refuse("has no tensor \"prompt_embeds\"");
  const auto rows = static_cast<std::uint64_t>(prompts->shape.front());
  if (rows < 1 || rows > most_prompts)
    refuse(fmt::format("is of {} prompts, 1 to {} are taken", rows, most_prompts));
  std::uint64_t values = 0;
  for (const auto& entry : index.tensors())
    values += entry.elements();
  if (values > most_values)
    refuse(fmt::format("has {} values, at most {} are taken", values, most_values));

  PromptEmbedsFile file{.tensors = {}, .prompts = static_cast<std::size_t>(rows)};
  for (const auto& entry : index.tensors()) {
    try {
      file.tensors[entry.name] = {.shape = entry.shape, .data = float_values(entry, bytes)};
    } catch (const std::runtime_error& error) {
      refuse(error.what());
    }
  }
  return file;
}

}  // namespace troupe::spec
