#pragma once
#include <cstdint>
#include <string>

namespace troupe::cluster {

/// What a host is told of its own actors, whether its controller runs on it or it joins one.
struct HostOptions {
  int actors = 1;
  std::string device = "cpu";  // cpu | cuda: actor i gets GPU i
  int threads_per_actor = 1;
  bool cuda_graphs = false;  // actors record what a stage computes again and again (docs/gpu.md)
  std::string pin = "numa";  // none | numa: actors keep to the CPUs of a NUMA node (docs/hosts.md)
  std::string machine_root;  // where the host's nodes are read; "" = /, tests have a tree of theirs
  std::uint64_t memory_limit = 0;  // bytes that an actor's models and jobs may take; 0 = its part
                                   // of nine tenths of what is free when it starts
  std::string actor_program;       // path of troupe-actor; "" = beside this executable
  std::string log_folder;          // where actors' output goes; "" = only its last lines are kept,
                                   // for causes of failure
};

}  // namespace troupe::cluster
