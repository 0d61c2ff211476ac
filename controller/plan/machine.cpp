#include "controller/plan/machine.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/number_text.h"
#include "base/parse_number.h"

namespace troupe::plan {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;
constexpr std::uint64_t kGigabyte = 1'000'000'000;

/// Dense tensor-core peaks of the data sheets reach half to two thirds in diffusion transformers:
/// this share of the peak is what a machine of the table is taken to compute.
constexpr double kReached = 0.55;
/// Issuing one operation to a GPU through ATen, without an interpreter; not measured here.
constexpr double kLaunch = 5 * kMicro;
/// A share of a raw link that bulk transfers reach.
constexpr double kLinkReached = 0.8;

/// Two threads are 1.54 times as fast as one (pipeline.py).
constexpr double kThreadsReached = 0.62;

/// A matrix product is cut into tiles of 128 × 128, one a processor: with as many tiles as
/// processors the last wave is on average half empty.
double half_speed(int processors) {
  return processors * 128.0 * 128.0 / 4;
}

Link pcie(double gigabytes_a_second) {
  return {20 * kMicro, gigabytes_a_second * kGiga * kLinkReached};
}

Link nvlink(double gigabytes_a_second) {
  return {10 * kMicro, gigabytes_a_second * kGiga * kLinkReached};
}

/// 100 Gb/s, shared by a host.
Link ethernet() {
  return {50 * kMicro, 12.5 * kGiga * kLinkReached};
}

Machine gpus(const std::string& name, double tensor_peak, double float_peak, double bandwidth,
             int gigabytes, int processors, Link inside) {
  Machine machine;
  machine.name = name;
  machine.device = {.half_flops = tensor_peak * kTera * kReached,
                    .float_flops = float_peak * kTera * kReached,
                    .attention_share = 1,
                    .bandwidth = bandwidth * kGiga * kLinkReached,
                    .memory = gigabytes * kGigabyte,
                    .launch = kLaunch,
                    .queues = true,
                    .half_speed_elements = half_speed(processors)};
  machine.inside = inside;
  machine.between = ethernet();
  machine.devices = 8;
  machine.gpus = true;
  return machine;
}

/// Vendors' data sheets: tensor-core peak of float16 without sparsity, float32, memory. PCIe is
/// 31.5 GB/s a direction for 16 lanes of generation 4, half of it for generation 3; NVLink 300 and
/// 450 GB/s a direction.
std::vector<Machine> table() {
  std::vector<Machine> all{
      gpus("l40", 181, 90.5, 864, 48, 142, pcie(31.5)),
      gpus("l20", 119.5, 59.8, 864, 48, 92, pcie(31.5)),
      gpus("t4", 65, 8.1, 320, 16, 40, pcie(15.75)),
      gpus("a100-pcie", 312, 19.5, 1935, 80, 108, pcie(31.5)),
      gpus("a100-nvlink", 312, 19.5, 2039, 80, 108, nvlink(300)),
      gpus("h100-nvlink", 989, 67, 3350, 80, 132, nvlink(450)),
      gpus("h200-nvlink", 989, 67, 4800, 141, 132, nvlink(450)),
  };
  all[2].devices = 4;
  all[3].devices = 4;
  for (const std::size_t newer : {0, 1, 5, 6})
    all[newer].fp8 = true;
  all.push_back(this_cpu(4));
  return all;
}

}  // namespace

Machine this_cpu(int actors, int cores) {
  Machine machine;
  machine.name = "cpu";
  // pixart_forward and pipeline.py: 5.6e11 FLOP in 5.55 s on one thread. Half types are computed in
  // float32 there.
  machine.device = {.half_flops = 1.05e11,
                    .float_flops = 1.05e11,
                    .attention_share = 0.9,
                    .bandwidth = 10.7 * kGiga,
                    .memory = 0,
                    .launch = 4 * kMicro,
                    .queues = false,
                    .half_speed_elements = 2000};
  // tensor_plane: shm, and tcp between hosts.
  machine.inside = {4.4 * kMicro, 10.7 * kGiga};
  machine.between = {24 * kMicro, 1.25 * kGiga};
  machine.devices_per_host = 1 << 20;
  machine.devices = actors;
  if (cores == 0) return machine;
  if (const int threads = cores / actors; threads > 1) {
    const double faster = std::pow(threads, kThreadsReached);
    machine.device.half_flops *= faster;
    machine.device.float_flops *= faster;
  } else {
    machine.busy_devices_per_host = cores;
  }
  return machine;
}

Machine shared_by(const Machine& machine, double actors) {
  const double on_host = std::min<double>(actors, machine.devices_per_host);
  if (machine.busy_devices_per_host == 0 || on_host <= machine.busy_devices_per_host)
    return machine;
  Machine slower = machine;
  const double share = machine.busy_devices_per_host / on_host;
  slower.device.half_flops *= share;
  slower.device.float_flops *= share;
  slower.device.bandwidth *= share;
  slower.device.launch /= share;
  return slower;
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& machine : table())
    names.push_back(machine.name);
  return names;
}

Machine machine_of(const std::string& text) {
  const auto refuse = [&text](const std::string& why) {
    std::string names;
    for (const auto& name : machine_names())
      names += (names.empty() ? "" : ", ") + name;
    throw std::invalid_argument("[machine] \"" + text + "\" " + why + ": one of " + names +
                                ", with xN for N devices, such as l40x8");
  };
  std::string name = text;
  int devices = 0;
  const auto cross = text.rfind('x');
  if (cross != std::string::npos && cross + 1 < text.size() &&
      text.find_first_not_of("0123456789", cross + 1) == std::string::npos) {
    devices = parse_number<int>(text.substr(cross + 1)).value_or(0);
    if (devices < 1 || devices > 1024) refuse("has a number of devices outside 1 to 1024");
    name = text.substr(0, cross);
    if (name.ends_with('-')) name.pop_back();
  }
  for (auto machine : table()) {
    if (machine.name != name) continue;
    if (devices > 0) machine.devices = devices;
    return machine;
  }
  refuse("is not in the table");
  return {};
}

Machine calibrated(Machine machine, double predicted, double measured) {
  if (!(predicted > 0 && measured > 0)) {
    throw std::invalid_argument("[machine] cannot calibrate by " + number_text(predicted) +
                                " predicted and " + number_text(measured) +
                                " measured seconds: both must be above 0");
  }
  const double faster = predicted / measured;
  machine.device.half_flops *= faster;
  machine.device.float_flops *= faster;
  return machine;
}

WorkRates rates_of(const Machine& machine, ComputeType dtype) {
  if (!machine.measured) return {};
  return {.products = machine.flops(dtype),
          .attention = machine.flops(dtype) * machine.device.attention_share,
          .bandwidth = machine.device.bandwidth,
          .launch = machine.device.queues ? 0 : machine.device.launch,
          .element = static_cast<double>(element_bytes(dtype))};
}

Machine machine_here(DeviceKind device, int actors, int cores) {
  if (device == DeviceKind::cuda) return machine_of("a100-nvlink-x" + std::to_string(actors));
  return this_cpu(actors, cores);
}

}  // namespace troupe::plan
