#pragma once
#include <cstdint>

#include "troupe/actor_class.h"

/// Counts. One object of it lives in a process of its own somewhere in the cluster.
class Counter {
 public:
  explicit Counter(std::int64_t start) : sum_(start) {}
  std::int64_t add(std::int64_t amount) { return sum_ += amount; }
  std::int64_t value() const { return sum_; }

 private:
  std::int64_t sum_;
};
TROUPE_ACTOR(Counter, (std::int64_t), add, value)
