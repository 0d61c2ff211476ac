#pragma once
#include "models/spec/model_spec.h"

namespace troupe::spec {

/// Refuses a model whose network, text encoders and VAE do not fit together. Throws
/// std::runtime_error naming both sizes and the configs' keys.
void check_fit(const ModelSpec& spec);

}  // namespace troupe::spec
