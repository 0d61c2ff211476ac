#include "controller/jobs/step_clock.h"

namespace troupe::jobs {

void StepClock::completed(std::int32_t step, double now) {
  constexpr std::size_t kWindow = 6;
  times_.push_back({step, now});
  if (times_.size() > kWindow) times_.pop_front();
}

double StepClock::seconds_per_step() const {
  if (times_.size() < 2 || times_.back().step == times_.front().step) return 0;
  return (times_.back().time - times_.front().time) / (times_.back().step - times_.front().step);
}

}  // namespace troupe::jobs
