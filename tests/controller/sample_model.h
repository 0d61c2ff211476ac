#pragma once
#include "models/spec/model_spec.h"

namespace troupe::test {

/// The shape of the demo checkpoint, read from its folder: 8 blocks × 192, native 256 px.
inline const spec::ModelSpec& sample_model() {
  static const auto model = spec::read_model_spec(TROUPE_SOURCE_DIR "/examples/demo/model");
  return model;
}

/// Same as sample_model, but blocks of its second half take up what those of the first half left.
inline const spec::ModelSpec& skipping_model() {
  static const auto model = [] {
    auto skipping = sample_model();
    skipping.transformer.skip_from = {-1, -1, -1, -1, -1, 2, 1, 0};
    return skipping;
  }();
  return model;
}

}  // namespace troupe::test
