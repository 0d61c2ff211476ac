#pragma once
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "controller/schedule/task_graph.h"

namespace troupe::schedule {

/// Seconds that tasks are expected to take: their work times what a unit of it took before, on the
/// same machine (say, deployment), for the same kind, stage and mode. Where that is not known yet,
/// what a unit took on the machine in the mean, then a guess that only relates tasks to one
/// another. Pure: measurements come in.
class TaskSpeeds {
 public:
  using Class = std::uint32_t;
  struct Estimate {
    double seconds = 0;
    bool measured = false;
  };

  /// Tasks of one class share a speed.
  Class class_of(std::uint64_t machine, const Task& task);
  Estimate estimate(Class of, double work) const;
  /// What a task of this class and work took, in seconds without waits. Anything but a positive
  /// number is passed over.
  void learn(Class of, double work, double seconds);

 private:
  struct Rate {
    double seconds_per_unit = 0;  // 0 = not measured
    void take(double sample);
  };
  struct Entry {
    Rate rate;
    std::size_t machine = 0;
  };
  std::map<std::tuple<std::uint64_t, wire::TaskKind, std::int32_t, bool, bool>, Class> classes_;
  std::vector<Entry> entries_;
  std::map<std::uint64_t, std::size_t> machine_index_;
  std::vector<Rate> machines_;
};

}  // namespace troupe::schedule
