#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace troupe::cli {

/// The hosts of a Slurm list such as `node[1-2,7],gpu-[001-003]x[0-1]`, in its order. Throws
/// std::runtime_error: brackets or ranges that make no sense, more than 65,536 hosts.
std::vector<std::string> slurm_hosts(const std::string& list);

/// What `srun` says to this process of its step and its job.
struct SlurmTask {
  struct Place {
    std::string node;
    std::string name;  // among the cluster's hosts: the node's, with -1, -2, … its further tasks
  };
  Place self;
  std::string first;  // the job's first node, where its controller is; "" = not said
  /// The tasks of lower rank, in order; empty where Slurm does not say them, or ranks do not run
  /// through a node before the next (--distribution).
  std::vector<Place> before;
};

/// Nothing outside of `srun`. `variable`: the environment, "" for what is not in it. Throws
/// std::runtime_error naming a variable that makes no sense.
std::optional<SlurmTask> slurm_task(const std::function<std::string(const std::string&)>& variable);

/// That of this process.
std::optional<SlurmTask> slurm_task();

}  // namespace troupe::cli
