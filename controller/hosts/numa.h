#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::cluster {

/// A NUMA node of a host: the CPUs that are near one part of its memory.
struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // ascending; none where a node is memory alone

  bool operator==(const NumaNode&) const = default;
};

/// Facts of a host's actor that decide its pin; actors come in order of local rank.
struct PinnedActor {
  bool on_gpu = false;
  int gpu_node = -1;  // of its GPU; -1 = not known
  int threads = 1;
};

/// CPUs that an actor may run on: all CPUs of a node that this process may use. Memory that the
/// actor allocates is of that node too, for the kernel takes a page from where it is touched first;
/// pages of mapped files lie where somebody first read them.
struct Pin {
  int node = 0;
  std::vector<int> cpus;

  bool operator==(const Pin&) const = default;
};

struct Pins {
  std::vector<std::optional<Pin>> of_actor;  // nothing = it runs where this process may
  std::string why_not;                       // why an actor on a host of several nodes has no pin
};

/// Spreads a host's actors over its nodes. Actors on the CPU in proportion to the nodes' allowed
/// CPUs, neighbours in rank together, so that groups of tp, ulysses and ring stay inside a node;
/// none of them where a CPU would get more of their threads than without pins. Actors on a GPU to
/// its node. Nobody is pinned where fewer than two nodes have CPUs that are allowed. Pure.
Pins pins_of(const std::vector<NumaNode>& nodes, const std::vector<int>& allowed,
             const std::vector<PinnedActor>& actors);

/// Reads "0-3,8" as Linux writes CPUs down, in ascending order; "" is none. Throws
/// std::invalid_argument naming what is wrong: not a list, out of order, a number above 65535.
std::vector<int> parse_cpu_list(std::string_view text);
/// Returns the CPUs in the form that parse_cpu_list reads.
std::string cpu_list_text(const std::vector<int>& cpus);

/// A GPU as its driver describes it.
struct LocalGpu {
  std::string bus_id;  // PCI, 0000:18:00.0
  std::string uuid;    // GPU-…
  std::string model;
  int node = -1;  // NUMA; -1 = not known

  bool operator==(const LocalGpu&) const = default;
};

/// Settings of a process's environment for the GPUs that CUDA shows it.
struct CudaView {
  std::optional<std::string> visible = {};  // CUDA_VISIBLE_DEVICES
  std::string order = {};                   // CUDA_DEVICE_ORDER
};

/// Returns the GPUs as CUDA counts them: by bus where it was told so or where they are of one
/// model, and only those that are visible. Throws std::invalid_argument where the order cannot be
/// told: several models and CUDA's own order of speed, parts of GPUs (MIG). Pure.
std::vector<LocalGpu> in_cuda_order(std::vector<LocalGpu> gpus, const CudaView& view);

}  // namespace troupe::cluster
