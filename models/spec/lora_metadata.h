#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "models/spec/lora_targets.h"
#include "models/spec/weight_index.h"

namespace troupe::spec {

/// What diffusers writes into a file's metadata: how the adapters of its components were made.
class LoraMetadata {
 public:
  /// Throws as `read_lora_spec` does for what is not supported.
  explicit LoraMetadata(const WeightIndex& weights);

  /// The alpha of a product, where the metadata have one for its component.
  std::optional<double> alpha(const LoraOwner& owner) const;

 private:
  void check_patterns(const std::string& key, const nlohmann::json& patterns) const;
  std::optional<double> by_pattern(const std::string& key, const std::string& name) const;

  std::filesystem::path file_;
  nlohmann::json json_;
};

}  // namespace troupe::spec
