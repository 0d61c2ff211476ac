#include "controller/plan/machine.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>

#include "base/format.h"
#include "base/numbers.h"

namespace troupe::plan {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kMicro = 1e-6;
constexpr std::uint64_t kGigabyte = 1'000'000'000;

/// Seconds in which one operation is issued to a GPU through ATen, without an interpreter; not
/// measured here. Python takes 1.5 times as long on the hosts of the published NVLink machines as
/// on those of the PCIe ones, so that is taken for the hosts' own speed.
constexpr double kLaunch = 5 * kMicro;
constexpr double kSlowHost = 1.5;
/// Share of its data sheet's bandwidth that a GPU's memory reaches.
constexpr double kMemoryReached = 0.8;
/// Share of a link's raw rate that NCCL's collectives reach: over PCIe between GPUs that write to
/// each other, through the host's memory where they cannot, over NVLink.
constexpr double kPcieReached = 0.75, kStagedReached = 0.375, kNvlinkReached = 0.33;
/// Share of the lanes to its host that one GPU's copies from pinned memory reach.
constexpr double kCopiesReached = 0.8;
/// Share that is left to each GPU where all GPUs of two sockets send to all others.
constexpr double kAcrossSockets = 0.04;
/// Number of channels to whose multiples attention kernels pad heads.
constexpr int kHeadStep = 32;

/// Exponent of the number of threads in their speed: two are 1.54 times as fast as one
/// (pipeline.py).
constexpr double kThreadsReached = 0.62;

/// Returns the output elements at half of the speed. A matrix product is cut into tiles of 128 ×
/// 128, one a processor: with as many tiles as processors the last wave is on average half empty.
double half_speed(int processors) {
  return processors * 128.0 * 128.0 / 4;
}

/// Link over PCIe. Its latency is what one collective waits for beside its bytes: the kernel's
/// start, and its peers.
Interconnect pcie(double gigabytes_a_second, double reached = kPcieReached) {
  return {120 * kMicro, gigabytes_a_second * kGiga * reached};
}

Interconnect nvlink(double gigabytes_a_second) {
  return {40 * kMicro, gigabytes_a_second * kGiga * kNvlinkReached};
}

/// Link of 100 Gb/s, shared by a host.
Interconnect ethernet() {
  return {150 * kMicro, 12.5 * kGiga * 0.8};
}

/// Facts of a kind of GPU: its data sheet (tensor-core peak of float16 without sparsity, float32,
/// memory) and the shares of the tensor-core peak that matrix products and attention reach, by the
/// published runs on one of them. L20s and L40s hold their clocks; a T4 does not with 70 W.
struct Gpu {
  double tensor_peak, float_peak;  // TFLOP/s
  double bandwidth;                // GB/s
  int gigabytes;
  int processors;
  double products_reached, attention_reached;
  double host;  // GB/s a direction of the PCIe lanes to its host
};

Machine gpus(const std::string& name, const Gpu& gpu, Interconnect inside) {
  Machine machine;
  machine.name = name;
  machine.device = {.half_flops = gpu.tensor_peak * kTera * gpu.products_reached,
                    .float_flops = gpu.float_peak * kTera * gpu.products_reached,
                    .attention_share = gpu.attention_reached / gpu.products_reached,
                    .bandwidth = gpu.bandwidth * kGiga * kMemoryReached,
                    .memory = gpu.gigabytes * kGigabyte,
                    .host_bandwidth = gpu.host * kGiga * kCopiesReached,
                    .launch = kLaunch,
                    .queues = true,
                    .half_speed_elements = half_speed(gpu.processors),
                    .head_step = kHeadStep};
  machine.inside = inside;
  machine.between = ethernet();
  machine.devices = 8;
  machine.gpus = true;
  return machine;
}

/// Returns the table of machines. PCIe is 31.5 GB/s a direction for 16 lanes of generation 4, half
/// of it for generation 3 and twice for generation 5; NVLink 300 and 450 GB/s a direction.
std::vector<Machine> table() {
  std::vector<Machine> all{
      gpus("l40", {181, 90.5, 864, 48, 142, 0.72, 0.79, 31.5}, pcie(31.5)),
      gpus("l20", {119.5, 59.8, 864, 48, 92, 0.90, 0.90, 31.5}, pcie(31.5)),
      gpus("t4", {65, 8.1, 320, 16, 40, 0.35, 0.18, 15.75}, pcie(15.75)),
      gpus("a100-pcie", {312, 19.5, 1935, 80, 108, 0.53, 0.56, 31.5}, pcie(31.5, kStagedReached)),
      gpus("a100-nvlink", {312, 19.5, 2039, 80, 108, 0.53, 0.56, 31.5}, nvlink(300)),
      gpus("h100-nvlink", {989, 67, 3350, 80, 132, 0.55, 0.55, 63}, nvlink(450)),
      gpus("h200-nvlink", {989, 67, 4800, 141, 132, 0.55, 0.55, 63}, nvlink(450)),
  };
  for (auto& machine : all) {
    if (machine.name == "t4" || machine.name == "a100-pcie") {
      machine.devices = 4;
    } else if (machine.name.starts_with("l")) {
      machine.devices_per_socket = 4;
      machine.across_sockets = kAcrossSockets;
    }
    if (machine.name != "t4" && !machine.name.starts_with("a")) machine.fp8 = true;
    if (machine.name.starts_with("a") || machine.name.starts_with("h"))
      machine.device.launch *= kSlowHost;
  }
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
                    .host_bandwidth = 2.3 * kGiga,  // offload.py
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
  slower.device.host_bandwidth *= share;
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

std::string machine_of_gpu(const std::string& gpu) {
  std::string text = gpu;
  for (char& c : text)
    c = std::isalnum(static_cast<unsigned char>(c)) ? std::tolower(static_cast<unsigned char>(c))
                                                    : ' ';
  std::istringstream split(text);
  const std::set<std::string> words{std::istream_iterator<std::string>(split), {}};
  if (words.contains("l40") || words.contains("l40s")) return "l40";
  if (words.contains("l20")) return "l20";
  if (words.contains("t4")) return "t4";
  const bool pcie = words.contains("pcie") || words.contains("nvl");
  for (const std::string name : {"a100", "h100", "h200"}) {
    if (words.contains(name)) return pcie ? "a100-pcie" : name + "-nvlink";
  }
  return "";
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
  if (device == DeviceKind::cuda) return machine_of(fmt::format("{}-x{}", kAssumedGpu, actors));
  return this_cpu(actors, cores);
}

}  // namespace troupe::plan
