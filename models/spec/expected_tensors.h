#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/weight_index.h"

namespace troupe::spec {

/// A tensor that a config calls for. `other_names` are spellings of older checkpoints.
struct ExpectedTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<std::string> other_names = {};

  bool operator==(const ExpectedTensor&) const = default;
};

/// Throws std::runtime_error naming file, tensor, expected and found shape, if a tensor is missing,
/// has another shape or no floating dtype.
void check_tensor(const WeightIndex& index, const ExpectedTensor& expected);

/// Checks each of the tensors, and throws also if one is there that the config does not call for
/// and `ignorable` does not accept.
void check_tensors(const WeightIndex& index, const std::vector<ExpectedTensor>& expected,
                   const std::function<bool(std::string_view)>& ignorable);

/// The entry under the name or one of the older ones; throws if there is none.
const TensorEntry& entry_of(const WeightIndex& index, const ExpectedTensor& expected);

}  // namespace troupe::spec
