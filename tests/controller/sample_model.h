#pragma once
#include "models/spec/model_spec.h"

namespace troupe::test {

/// The shape of the demo checkpoint, read from its folder: 8 blocks × 192, native 256 px.
inline const spec::ModelSpec& sample_model() {
  static const auto model = spec::read_model_spec(TROUPE_SOURCE_DIR "/examples/demo/model");
  return model;
}

}  // namespace troupe::test
