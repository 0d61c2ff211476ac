#pragma once
#include <cstdint>
#include <deque>

namespace troupe::jobs {

/// Seconds per step as the mean of the last few steps. Pure: times come in.
class StepClock {
 public:
  /// Notes that so many steps are done.
  void completed(std::int32_t step, double now);
  /// Forgets the times so far: the time until the next step is done is not counted.
  void restart() { times_.clear(); }
  /// Returns 0 while fewer than two steps are done: the first one's time has beginnings in it.
  double seconds_per_step() const;

 private:
  struct Mark {
    std::int32_t step;
    double time;
  };
  std::deque<Mark> times_;
};

}  // namespace troupe::jobs
