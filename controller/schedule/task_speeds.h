#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "controller/schedule/task_graph.h"

namespace troupe::schedule {

/// Seconds that tasks are expected to take: their work times what a unit of it took before, on the
/// same machine (say, the same model on as many actors), for the same kind, stage and mode. Where
/// that is not known yet, what a unit took on the machine in the mean, then a guess that only
/// relates tasks to one another. Pure: measurements come in.
class TaskSpeeds {
  struct Rate {
    double seconds_per_unit = 0;  // 0 = not measured
    void take(double sample);
  };
  struct Entry {
    Rate rate;
    std::shared_ptr<Rate> mean;  // of its machine
  };

 public:
  /// Number of machines that are remembered: those that were asked for last. Classes outlive that.
  static constexpr std::size_t kMachines = 256;

  /// Class of tasks that share a speed.
  using Class = std::shared_ptr<Entry>;
  struct Estimate {
    double seconds = 0;
    bool measured = false;
  };

  Class class_of(std::uint64_t machine, const Task& task);
  static Estimate estimate(const Class& of, double work);
  /// Learns from what a task of this class and work took, in seconds without waits. Anything but a
  /// positive number is passed over.
  static void learn(const Class& of, double work, double seconds);

 private:
  struct Machine {
    std::shared_ptr<Rate> mean = std::make_shared<Rate>();
    std::map<std::tuple<wire::TaskKind, std::int32_t, bool, bool>, Class> classes = {};
    std::uint64_t used = 0;
  };
  std::map<std::uint64_t, Machine> machines_;
  std::uint64_t uses_ = 0;
};

}  // namespace troupe::schedule
