#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe::cli {

/// Returns the hosts of a Slurm list such as `node[1-2,7],gpu-[001-003]x[0-1]`, in its order.
/// Throws std::runtime_error: brackets or ranges that make no sense, more than 65,536 hosts.
std::vector<std::string> slurm_hosts(const std::string& list);

/// Description of this process's step and job, as `srun` gives it.
struct SlurmTask {
  struct Place {
    std::string node;
    std::string name;  // among the cluster's hosts: the node's, with -1, -2, … its further tasks
  };
  Place self;
  std::string first;  // the job's first node, where its controller is; "" = not said
  /// Tasks of lower rank, in order; empty if Slurm does not name them, or if ranks do not run
  /// through a node before the next (--distribution).
  std::vector<Place> before;
};

/// Reads the task from the environment; nothing outside of `srun`. `variable` returns a variable,
/// "" for one that is not set. Throws std::runtime_error naming a variable that makes no sense.
std::optional<SlurmTask> slurm_task(const std::function<std::string(const std::string&)>& variable);

/// Reads the task from the environment of this process.
std::optional<SlurmTask> slurm_task();

}  // namespace troupe::cli
