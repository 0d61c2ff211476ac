#pragma once
#include <cstdint>
#include <deque>

namespace troupe::jobs {

/// Seconds per step as the mean of the last few steps. Pure: times come in.
class StepClock {
 public:
  void completed(std::int32_t step, double now);
  /// 0 while fewer than two steps are done.
  double seconds_per_step() const;
  std::int32_t steps_done() const { return times_.empty() ? 0 : times_.back().step; }

 private:
  struct Mark {
    std::int32_t step;
    double time;
  };
  std::deque<Mark> times_;
};

}  // namespace troupe::jobs
