#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::actors {

/// Decides which calls of a network a step cache leaves out. A call is a batch item's patch at a
/// step; each item and patch has a history of its own. The same calls make the same decisions:
/// there are no tensors, clocks or processes in here. Sources: first-block cache of ParaAttention
/// and diffusers; TeaCache (Liu et al.).
class SkipRule {
 public:
  /// Sums of absolute values over a call's signal: of its difference from the one that it is
  /// compared with, and of that one.
  struct Change {
    double difference = 0;
    double before = 0;
  };

  /// `polynomial`, highest power first: changes are added up through it until they reach the
  /// threshold (TeaCache). Empty: one change is compared with the threshold (first-block cache).
  SkipRule(double threshold, std::vector<double> polynomial, std::int64_t items,
           std::int64_t patches);

  /// Returns true if calls are compared with the call before, false if with the last one that was
  /// computed.
  bool adds_up() const { return !polynomial_.empty(); }
  /// Returns whether the call has something to be compared with.
  bool knows(std::int64_t item, std::int64_t patch) const { return at(item, patch).known; }
  /// Returns whether the call is left out; `knows` is true.
  bool skips(std::int64_t item, std::int64_t patch, Change change);
  /// Notes that the call is computed without asking.
  void computes(std::int64_t item, std::int64_t patch);

 private:
  struct History {
    bool known = false;
    double sum = 0;
  };
  const History& at(std::int64_t item, std::int64_t patch) const {
    return histories_.at(static_cast<std::size_t>(item * patches_ + patch));
  }
  History& at(std::int64_t item, std::int64_t patch) {
    return histories_.at(static_cast<std::size_t>(item * patches_ + patch));
  }

  double threshold_;
  std::vector<double> polynomial_;
  std::int64_t patches_;
  std::vector<History> histories_;
};

}  // namespace troupe::actors
