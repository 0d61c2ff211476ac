#pragma once

#include <map>
#include <string>

#include "models/spec/weight_index.h"

namespace troupe::spec {

/// A product's two halves and its alpha in a LoRA's file; null for those that the file lacks.
struct LoraPair {
  const TensorEntry* down = nullptr;
  const TensorEntry* up = nullptr;
  const TensorEntry* alpha = nullptr;
};

/// Returns the pairs by the names of their tensors without the endings. Throws as `read_lora_spec`
/// does for a tensor that is not part of a pair, or one that is there twice.
std::map<std::string, LoraPair> lora_pairs(const WeightIndex& weights);

}  // namespace troupe::spec
