#pragma once
#include "troupe/actor.h"

namespace troupe::testing {

/// Multiplies with LibTorch, in the process that has it.
class Multiplier {
 public:
  static constexpr bool needs_torch = true;
  explicit Multiplier(double factor) : factor_(factor) {}
  Array times(Array tensor) const;

 private:
  double factor_;
};

}  // namespace troupe::testing

TROUPE_ACTOR(troupe::testing::Multiplier, (double), times)
