#include "controller/schedule/task_speeds.h"

#include <algorithm>
#include <cmath>

namespace troupe::schedule {
namespace {

/// Of a token through one block, when nothing is known.
constexpr double kGuess = 1e-6;
/// How much the newest measurement counts.
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
  const auto [found, fresh] =
      classes_.try_emplace({machine, task.kind, task.stage, task.patch<0, task.work> 0},
                           static_cast<Class>(entries_.size()));
  if (fresh) {
    const auto [index, unknown] = machine_index_.try_emplace(machine, machines_.size());
    if (unknown) machines_.emplace_back();
    entries_.push_back({.rate = {}, .machine = index->second});
  }
  return found->second;
}

TaskSpeeds::Estimate TaskSpeeds::estimate(Class of, double work) const {
  const auto& entry = entries_.at(of);
  if (entry.rate.seconds_per_unit > 0) return {units(work) * entry.rate.seconds_per_unit, true};
  const double mean = machines_[entry.machine].seconds_per_unit;
  return {units(work) * (mean > 0 ? mean : kGuess), false};
}

void TaskSpeeds::learn(Class of, double work, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  auto& entry = entries_.at(of);
  entry.rate.take(seconds / units(work));
  if (work > 0) machines_[entry.machine].take(seconds / units(work));
}

}  // namespace troupe::schedule
