#pragma once
#include <cstdint>
#include <string>

#include "base/format.h"

namespace troupe::cluster {

/// Returns the device of the actor that is number `rank` of its kind on a host: "cpu", or "cuda:N"
/// where GPU N has so many actors.
inline std::string device_of(const std::string& kind, int rank, int actors_per_gpu) {
  return kind == "cuda" ? fmt::format("cuda:{}", rank / actors_per_gpu) : kind;
}

/// Options of a host for its own actors, whether its controller runs on it or it joins one.
struct HostOptions {
  int actors = 1;
  std::string device = "cpu";  // cpu | cuda
  int actors_per_gpu = 1;      // with cuda: so many share a GPU, for tests (docs/gpu.md)
  int threads_per_actor = 1;
  bool cuda_graphs = false;  // actors record what a stage computes again and again (docs/gpu.md)
  std::string pin = "numa";  // none | numa: actors keep to the CPUs of a NUMA node
  std::string machine_root;  // root of the host's nodes; "" = /, tests have a tree of theirs
  std::uint64_t memory_limit = 0;  // bytes that an actor's models and jobs may take; 0 = its part
                                   // of nine tenths of what is free when it starts
  std::string actor_program;       // path of troupe-actor; "" = beside this executable
  std::string log_folder;          // where actors' output goes; "" = only its last lines are kept,
                                   // for causes of failure

  /// Returns the number of GPUs that the host's actors are on.
  int gpus() const { return device == "cuda" ? (actors + actors_per_gpu - 1) / actors_per_gpu : 0; }
};

}  // namespace troupe::cluster
