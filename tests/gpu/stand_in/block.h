#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>

#include "tests/gpu/stand_in/grid.h"

namespace troupe::cuda_stand_in {

/// Order in which things run: ascending for 0, else shuffled by the seed, anew each time it is
/// asked.
class Order {
 public:
  explicit Order(std::uint32_t seed) : shuffled_(seed != 0), random_(seed) {}

  template <typename Iterator>
  void arrange(Iterator begin, Iterator end) {
    if (shuffled_) std::shuffle(begin, end, random_);
  }

 private:
  bool shuffled_;
  std::minstd_rand random_;
};

/// Error of threads of a block that a device would not forgive.
struct BlockError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs `thread` once for every thread of the block at `place.block`. Throws BlockError.
void run_block(const Index& size, const std::function<void()>& thread, Order& order);
/// Ends the block with that error, in the thread that runs.
[[noreturn]] void fail_block(std::string why);

}  // namespace troupe::cuda_stand_in
