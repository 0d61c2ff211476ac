#pragma once
#include <cstdint>
#include <deque>

namespace troupe::jobs {

/// Seconds per step as the mean of the last few steps. Pure: times come in.
class StepClock {
 public:
  /// So many steps are done.
  void completed(std::int32_t step, double now);
  /// What comes next says nothing of how long steps take: the time until the next one is done is
  /// not counted.
  void restart() { times_.clear(); }
  /// 0 while fewer than two steps are done: the first one's time has beginnings in it.
  double seconds_per_step() const;

 private:
  struct Mark {
    std::int32_t step;
    double time;
  };
  std::deque<Mark> times_;
};

}  // namespace troupe::jobs
