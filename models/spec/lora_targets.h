#pragma once

#include <map>
#include <string>

#include "models/spec/lora_products.h"
#include "models/spec/model_spec.h"

namespace troupe::spec {

/// Name of the transformer or U-Net in LoRAs.
inline constexpr const char* kDenoiser = "transformer";

/// A component, and the rest of the name within it.
struct LoraOwner {
  std::string component;
  std::string name;
  bool kohya = false;
};

/// The components of a model that LoRAs are for. The model must outlive it.
class LoraTargets {
 public:
  explicit LoraTargets(const ModelSpec& model);

  /// Returns the component that the pair `base` (a name from lora_pairs()) belongs to. Throws as
  /// `read_lora_spec` does.
  LoraOwner owner_of(const TensorEntry& entry, const std::string& base) const;
  const LoraProducts& products(const std::string& component) const {
    return products_.at(component);
  }

 private:
  LoraOwner kohya_encoder(const TensorEntry& entry, const std::string& base) const;

  const ModelSpec& model_;
  std::map<std::string, LoraProducts> products_;
};

}  // namespace troupe::spec
