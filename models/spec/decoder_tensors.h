#pragma once
#include <vector>

#include "models/spec/model_spec.h"

namespace troupe::spec {

/// Tensors that the folder's VAE must have to decode pictures, or videos.
inline std::vector<ExpectedTensor> decoder_tensors(const ModelSpec& spec) {
  return spec.video_vae ? expected_tensors(*spec.video_vae) : expected_tensors(spec.vae);
}

}  // namespace troupe::spec
