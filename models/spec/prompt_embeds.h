#pragma once

#include <string_view>
#include <vector>

#include "models/spec/model_spec.h"
#include "models/spec/user_spec.h"

namespace troupe::spec {

/// Returns the tensors that stand for a prompt of this model, all of which it needs. The negative
/// branch's tensors have the same shapes, and kNegativeTensor before their names.
std::vector<PromptTensor> prompt_tensors(const ModelSpec& model);

inline constexpr std::string_view kNegativeTensor = "negative_";

}  // namespace troupe::spec
