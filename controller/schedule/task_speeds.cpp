#include "controller/schedule/task_speeds.h"

#include <algorithm>
#include <cmath>

namespace troupe::schedule {
namespace {

/// Seconds of a token through one block, when nothing is known.
constexpr double kGuess = 1e-6;
/// Weight of the newest measurement.
constexpr double kNewest = 0.25;

double units(double work) {
  return std::max(work, 1.0);
}

}  // namespace

void TaskSpeeds::Rate::take(double sample) {
  seconds_per_unit =
      seconds_per_unit == 0 ? sample : seconds_per_unit + kNewest * (sample - seconds_per_unit);
}

TaskSpeeds::Class TaskSpeeds::class_of(std::uint64_t machine, const Task& task) {
  const auto [found, unknown] = machines_.try_emplace(machine);
  auto& known = found->second;
  known.used = ++uses_;
  if (unknown && machines_.size() > kMachines) {
    machines_.erase(std::ranges::min_element(machines_, {},
                                             [](const auto& entry) { return entry.second.used; }));
  }
  auto& of = known.classes[{task.kind, task.stage, task.patch<0, task.work> 0}];
  if (!of) of = std::make_shared<Entry>(Entry{.rate = {}, .mean = known.mean});
  return of;
}

TaskSpeeds::Estimate TaskSpeeds::estimate(const Class& of, double work) {
  if (of->rate.seconds_per_unit > 0) return {units(work) * of->rate.seconds_per_unit, true};
  const double mean = of->mean->seconds_per_unit;
  return {units(work) * (mean > 0 ? mean : kGuess), false};
}

void TaskSpeeds::learn(const Class& of, double work, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  of->rate.take(seconds / units(work));
  if (work > 0) of->mean->take(seconds / units(work));
}

}  // namespace troupe::schedule
