#include "models/spec/lora_targets.h"

#include <algorithm>
#include <string_view>

#include "models/spec/lora_refusal.h"

namespace troupe::spec {
namespace {

[[noreturn]] void no_encoder(const TensorEntry& entry) {
  refuse_lora(entry, "is for a text encoder that this model does not have");
}

}  // namespace

LoraTargets::LoraTargets(const ModelSpec& model) : model_(model) {
  products_[kDenoiser] = LoraProducts(model.transformer_weights, original_names(model.transformer));
  for (const auto& encoder : model.text_encoders) {
    if (!encoder.absent) products_[encoder.component] = LoraProducts(encoder.weights, {});
  }
}

LoraOwner LoraTargets::owner_of(const TensorEntry& entry, const std::string& base) const {
  for (const std::string_view prefix : {"lora_unet_", "lora_transformer_"}) {
    if (base.starts_with(prefix)) return {kDenoiser, base.substr(prefix.size()), true};
  }
  if (base.starts_with("lora_te")) return kohya_encoder(entry, base);
  if (base.starts_with("lora_")) {
    refuse_lora(entry, "is not known: after lora_ come unet, transformer, te, te1, te2 or te3");
  }
  for (const std::string_view prefix : {"transformer.", "unet.", "diffusion_model.",
                                        "base_model.model.diffusion_model.", "base_model.model."}) {
    if (base.starts_with(prefix)) return {kDenoiser, base.substr(prefix.size())};
  }
  for (const char* component : {"text_encoder", "text_encoder_2", "text_encoder_3"}) {
    const std::string prefix = std::string(component) + ".";
    if (!base.starts_with(prefix)) continue;
    if (!products_.contains(component)) no_encoder(entry);
    return {component, base.substr(prefix.size())};
  }
  return {kDenoiser, base};
}

/// te and te1 are the first encoder, te2 the second; te3 is T5, also where only CLIP is beside it.
LoraOwner LoraTargets::kohya_encoder(const TensorEntry& entry, const std::string& base) const {
  const auto end = base.find('_', std::string_view("lora_").size());
  if (end == std::string::npos) no_encoder(entry);
  const std::string which = base.substr(5, end - 5);
  const auto& encoders = model_.text_encoders;
  std::size_t index = encoders.size();
  if (which == "te" || which == "te1") index = 0;
  if (which == "te2") index = 1;
  if (which == "te3") index = std::min<std::size_t>(2, encoders.size() - 1);
  if (index >= encoders.size() || encoders[index].absent) no_encoder(entry);
  return {encoders[index].component, base.substr(end + 1), true};
}

}  // namespace troupe::spec
