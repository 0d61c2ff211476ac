#pragma once

#include <string_view>
#include <vector>

#include "models/spec/weight_index.h"

namespace troupe::spec {

/// The values of a tensor of the safetensors file with these bytes, as float32 whatever the type
/// there. Throws std::runtime_error naming the tensor and the first value that is not finite.
std::vector<float> float_values(const TensorEntry& entry, std::string_view file);

}  // namespace troupe::spec
