#pragma once
#include <string>

#include "tests/support/scratch.h"

namespace troupe::testing {

/// Size of a random PixArt transformer; its width is heads × head_dim.
struct TransformerSize {
  int blocks = 8;
  int heads = 5;
  int head_dim = 8;
};

/// A model folder with a random float32 transformer and all else of tests/fixtures/tiny-pixart. It
/// goes with this object.
class RandomModel {
 public:
  explicit RandomModel(const TransformerSize& size);
  std::string folder() const { return scratch_.path.string(); }

 private:
  Scratch scratch_;
};

/// Eight blocks, so that there are eight stages, and five heads: no degree from 2 to 8 but 5
/// divides them.
const RandomModel& odd_model();
/// Same as odd_model, with sixteen blocks.
const RandomModel& deep_model();

}  // namespace troupe::testing
