#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/choices.h"

namespace troupe::plan {

/// Speeds and memory of one device. Speeds are those that large operations reach, not data-sheet
/// peaks.
struct Device {
  double half_flops = 0;       // FLOP/s of matrix products in bfloat16 and float16
  double float_flops = 0;      // FLOP/s of matrix products in float32
  double attention_share = 1;  // speed of attention ÷ speed of matrix products
  double bandwidth = 0;        // bytes/s of its memory
  std::uint64_t memory = 0;    // bytes; 0 = not known
  double host_bandwidth = 0;   // bytes/s at which weights come from its host's memory
  double launch = 0;           // seconds that issuing one operation takes
  bool queues = true;          // operations are issued ahead and computed behind (GPUs)
  /// Output elements of a matrix product at which half of the speed is reached: small ones leave
  /// processors idle.
  double half_speed_elements = 0;
  /// Attention computes heads of whole multiples of this many channels; 0 = of any width.
  int head_step = 0;
};

/// Cost of one transfer: latency + bytes ÷ bandwidth. A device's sends share its bandwidth.
struct Interconnect {
  double latency = 0;    // seconds
  double bandwidth = 0;  // bytes/s out of one device
};

/// Hosts of equal devices. A pure value, so what is not here can be planned for.
struct Machine {
  std::string name;
  Device device;
  Interconnect inside;   // between devices of a host
  Interconnect between;  // between hosts; its bandwidth is shared by a host's devices
  int devices_per_host = 8;
  int devices = 1;
  /// Devices of a host that reach each other without its other socket; 0 = all of them.
  int devices_per_socket = 0;
  /// The share of `inside.bandwidth` that is left to each where all devices of both sockets send to
  /// all others at once.
  double across_sockets = 1;
  /// Devices of each host; empty = `devices_per_host` each.
  std::vector<int> hosts = {};
  /// Number of devices that a host can keep busy at once; 0 = all. CPU actors share cores.
  int busy_devices_per_host = 0;
  bool gpus = false;
  bool fp8 = false;  // its GPUs multiply in 8 bits: compute capability 8.9 and later
  /// The device's speeds come from a probe of it: stages are split by seconds then.
  bool measured = false;
  /// Lines for people that say what was measured and what was not.
  std::vector<std::string> notes = {};

  /// FLOP/s of large matrix products in this type.
  double flops(ComputeType dtype) const {
    return dtype == ComputeType::float32 ? device.float_flops : device.half_flops;
  }
};

/// Speeds by kind of work, for costs of blocks in seconds. All 0 = not known: costs are FLOPs.
struct WorkRates {
  double products = 0;   // FLOP/s of matrix products
  double attention = 0;  // FLOP/s of attention
  double bandwidth = 0;  // bytes/s of what only reads and writes
  double launch = 0;     // seconds an operation
  double element = 4;    // bytes of a value

  bool known() const { return products > 0 && attention > 0 && bandwidth > 0; }
};

/// Returns the rates of a machine whose speeds were measured; of another one none.
WorkRates rates_of(const Machine& machine, ComputeType dtype);

/// Returns the names of the machines in the table, such as "l40".
std::vector<std::string> machine_names();

/// Returns a machine of the table: NAME, NAMExN or NAME-xN with N devices (8, 16 on two hosts,
/// ...), such as "l40x8", "a100-nvlink-x8", "cpux4". Throws std::invalid_argument, listing the
/// names, for another text and for a number outside 1 to 1024.
Machine machine_of(const std::string& text);

/// Machine that GPUs count as of which nobody knows better.
inline constexpr const char* kAssumedGpu = "a100-nvlink";

/// Returns the table's machine whose GPUs and links those of this name have ("NVIDIA
/// A100-PCIE-40GB"), as their driver says it. A PCIe card of the A100, H100 or H200, with a bridge
/// between pairs or not, counts as "a100-pcie", one on a board of its own as with NVLink; an L40S
/// as an L40. "" where the table has none.
std::string machine_of_gpu(const std::string& gpu);

/// Returns one host of CPU actors by what this project measured (README, Figures). Each actor has
/// as many of the `cores` as go round, at least one; 0 = a core each.
Machine this_cpu(int actors, int cores = 0);

/// Returns the machine that degrees are picked for where nothing was measured: a host of so many
/// cores (0 = not known: a core each), or for "cuda" of kAssumedGpu. Only the ratios of its figures
/// matter for the choice.
Machine machine_here(DeviceKind device, int actors, int cores);

/// Returns the machine as a job finds it that keeps `actors` of its devices busy at once, on
/// average: slower where they share processors.
Machine shared_by(const Machine& machine, double actors);

/// Returns the machine made faster or slower so that what was predicted to take `predicted` seconds
/// of computing takes `measured`; links stay. Throws std::invalid_argument unless both are above 0.
Machine calibrated(Machine machine, double predicted, double measured);

}  // namespace troupe::plan
