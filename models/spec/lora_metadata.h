#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/lora_targets.h"
#include "models/spec/weight_index.h"

namespace troupe::spec {

/// Name of the file of settings that PEFT writes beside its weights.
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// Settings by which a LoRA's layers were made, by component: from the metadata that diffusers
/// writes into the file, or from kAdapterConfig beside a file of PEFT's.
class LoraMetadata {
 public:
  /// Throws as `read_lora_spec` does for what is not supported.
  explicit LoraMetadata(const WeightIndex& weights);

  /// Returns the alpha of a product of `rank` if its component has one. Throws if the settings give
  /// that alpha for another rank.
  std::optional<double> alpha(const LoraOwner& owner, const TensorEntry& down) const;

 private:
  /// PEFT's LoraConfig, as far as it says what is added.
  struct Adapter {
    std::string source;
    double alpha = 8;
    std::map<std::string, double> alphas;  ///< alphas of layers, by pattern of their names
    std::optional<double> rank;
    std::map<std::string, double> ranks;
    bool by_root = false;  ///< alpha is divided by the root of the rank
  };

  Adapter read(const ConfigReader& in, std::string source) const;

  std::map<std::string, Adapter> adapters_;
};

}  // namespace troupe::spec
