#include "controller/plan/measured.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/numbers.h"
#include "controller/plan/text_line.h"

namespace troupe::plan {
namespace {

std::string link_text(const Interconnect& link) {
  return line("%.3g µs, %.3g GB/s", link.latency * 1e6, link.bandwidth / 1e9);
}

/// Sets `value` to the least of what is known.
void least(double& value, double other) {
  if (other > 0) value = value > 0 ? std::min(value, other) : other;
}

void slowest(Interconnect& link, const Interconnect& other) {
  if (other.bandwidth <= 0) return;
  link.latency = std::max(link.latency, other.latency);
  least(link.bandwidth, other.bandwidth);
}

std::string figures_text(const HostReport& host, bool gpus) {
  const auto& found = *host.measured;
  std::string text = "measured on " + host.name + ": ";
  if (gpus) text += line("%.3g TFLOP/s of half products, ", found.half_flops / 1e12);
  text += line(
      "%.4g GFLOP/s of float32 products, %.4g of attention, %.3g GB/s read and written, %.3g µs ",
      found.float_flops / 1e9, found.attention_flops / 1e9, found.bandwidth / 1e9,
      found.launch * 1e6);
  text += "an operation; between its actors ";
  if (found.inside.bandwidth > 0) return text + link_text(found.inside);
  return text + (gpus ? "not measured" : "not measured, constants");
}

std::string row_of(const HostReport& host) {
  const auto row = machine_of_gpu(host.gpu);
  return row.empty() ? kAssumedGpu : row;
}

std::string row_text(const HostReport& host) {
  const auto what = host.gpu.empty() ? "which GPUs " + host.name + " has was not told"
                    : machine_of_gpu(host.gpu).empty()
                        ? host.name + " has " + host.gpu + ", which is not in the table"
                        : host.name + " has " + host.gpu;
  return what + ": its GPUs' links, and what was not measured, are those of " + row_of(host);
}

/// Returns a machine for GPUs of two kinds, in everything as slow as the slower of them.
Machine slower_of(const Machine& a, const Machine& b) {
  const bool first = a.device.half_flops <= b.device.half_flops;
  Machine machine = first ? a : b;
  const Machine& other = first ? b : a;
  machine.device.memory = std::min(machine.device.memory, other.device.memory);
  machine.fp8 = machine.fp8 && other.fp8;
  slowest(machine.inside, other.inside);
  if (machine.devices_per_socket == 0) {
    machine.devices_per_socket = other.devices_per_socket;
    machine.across_sockets = other.across_sockets;
  }
  return machine;
}

Machine gpus_of(const std::vector<HostReport>& hosts) {
  if (hosts.empty()) return machine_of(kAssumedGpu);
  auto machine = machine_of(row_of(hosts.front()));
  for (const auto& host : hosts)
    machine = slower_of(machine, machine_of(row_of(host)));
  return machine;
}

/// Returns the share of its actors that a host keeps busy at once.
double busy_share(const HostReport& host) {
  if (host.cores == 0 || host.actors == 0) return 1;
  const double busy = std::max(1.0, static_cast<double>(host.cores) / std::max(host.threads, 1));
  return std::min(1.0, busy / host.actors);
}

Machine cpus(int threads) {
  auto machine = this_cpu(1, std::max(threads, 1));
  machine.busy_devices_per_host = 0;
  return machine;
}

}  // namespace

std::optional<Measured> Measured::from(const std::map<std::string, std::string>& attributes) {
  bool sound = true;
  bool any = false;
  const auto number = [&](const char* name) {
    const auto said = attributes.find(std::string("measured.") + name);
    if (said == attributes.end()) return 0.0;
    const auto value = parse_number<double>(said->second);
    any = true;
    sound = sound && value && *value > 0 && std::isfinite(*value);
    return value.value_or(0);
  };
  const Measured found{.half_flops = number("half_flops"),
                       .float_flops = number("float_flops"),
                       .attention_flops = number("attention_flops"),
                       .bandwidth = number("bandwidth"),
                       .launch = number("launch"),
                       .inside = {number("link_latency"), number("link_bandwidth")}};
  if (!any || !sound || found.float_flops == 0 || found.bandwidth == 0) return std::nullopt;
  return found;
}

Machine machine_of_hosts(DeviceKind device, std::vector<HostReport> hosts) {
  std::erase_if(hosts, [](const auto& host) { return host.actors < 1; });
  std::stable_sort(hosts.begin(), hosts.end(),
                   [](const auto& a, const auto& b) { return a.actors > b.actors; });
  int actors = 0;
  int threads = hosts.empty() ? 1 : hosts.front().threads;
  for (const auto& host : hosts)
    actors += host.actors, threads = std::min(threads, host.threads);
  Machine machine = device == DeviceKind::cuda ? gpus_of(hosts) : cpus(threads);
  machine.name = "this cluster";
  machine.devices = std::max(actors, 1);
  if (hosts.empty()) return machine;

  const bool gpus = machine.gpus;
  double half = 0, single = 0, attention = 0, bandwidth = 0, launch = 0, busy = 1;
  Interconnect inside, between;
  for (const auto& host : hosts) {
    machine.hosts.push_back(host.actors);
    if (!gpus) busy = std::min(busy, busy_share(host));
    if (host.measured) {
      const auto& found = *host.measured;
      least(half, found.half_flops), least(single, found.float_flops);
      least(attention, found.attention_flops), least(bandwidth, found.bandwidth);
      launch = std::max(launch, found.launch);
      slowest(inside, found.inside);
      machine.notes.push_back(figures_text(host, gpus));
    } else {
      machine.notes.push_back(
          "not measured on " + host.name + ": " +
          (host.why_not.empty() ? "no actor of it has told yet" : host.why_not) +
          "; constants stand for it");
    }
    if (gpus) machine.notes.push_back(row_text(host));
    if (host.link) {
      slowest(between, *host.link);
      machine.notes.push_back("measured from the controller to " + host.name +
                              ", over the control plane: " + link_text(*host.link) +
                              (gpus ? "; between GPUs the constant stands" : ""));
    } else if (host.remote) {
      machine.notes.push_back(
          "not measured from the controller to " + host.name + ": " +
          (host.why_no_link.empty() ? "it has not answered yet" : host.why_no_link) +
          "; constants stand for it");
    }
  }
  machine.devices_per_host = machine.hosts.front();
  if (busy < 1) {
    machine.busy_devices_per_host =
        std::max(1, static_cast<int>(std::lround(busy * machine.devices_per_host)));
  }
  if (inside.bandwidth > 0) machine.inside = inside;
  // Between GPUs tensors take another road than the control plane's pings: the constant stands.
  if (between.bandwidth > 0 && !gpus) machine.between = between;
  if (single == 0) return machine;
  machine.measured = true;
  auto& own = machine.device;
  own.float_flops = single;
  own.half_flops = half > 0 ? half : single;
  own.bandwidth = bandwidth;
  if (launch > 0) own.launch = launch;
  if (attention > 0) own.attention_share = attention / own.half_flops;
  return machine;
}

}  // namespace troupe::plan
