#pragma once
#include <cstdint>
#include <string>

#include "troupe/actor_plugin.h"

/// One member of a ring: takes a tensor, works on it, and hands it on.
class RingMember {
 public:
  RingMember(troupe::ActorContext& context, float factor) : context_(context), factor_(factor) {}
  /// Ones of this shape.
  troupe::Array make(std::int64_t rows, std::int64_t columns);
  /// The tensor times this member's factor.
  troupe::Array scale(troupe::Array tensor);
  float sum(troupe::Array tensor) const;
  /// Asks another member for a tensor and scales it: actors call each other as clients call them.
  float sum_of_other(troupe::ActorHandle<RingMember> other, std::int64_t rows);

 private:
  troupe::ActorContext& context_;
  float factor_;
};
TROUPE_ACTOR(RingMember, (float), make, scale, sum, sum_of_other)
