#include "controller/hosts/numa.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "base/format.h"
#include "base/numbers.h"

namespace troupe::cluster {

namespace {

constexpr int kLastCpu = 65535;

int take_number(std::string_view& text, std::string_view whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || text.front() == '-' || value > kLastCpu)
    throw std::invalid_argument("\"" + std::string(whole.substr(0, 80)) +
                                "\" is no list of CPUs such as 0-3,8");
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// Returns how many of `count` actors each node gets: by its CPUs, the rest to the largest
/// remainders.
std::vector<int> spread(int count, const std::vector<Pin>& nodes) {
  long cpus = 0;
  for (const auto& node : nodes)
    cpus += static_cast<long>(node.cpus.size());
  std::vector<int> counts;
  std::vector<std::pair<long, std::size_t>> rest;  // least first: minus the remainder
  int given = 0;
  for (const auto& node : nodes) {
    const long share = count * static_cast<long>(node.cpus.size());
    rest.emplace_back(-(share % cpus), counts.size());
    counts.push_back(static_cast<int>(share / cpus));
    given += counts.back();
  }
  std::sort(rest.begin(), rest.end());
  for (std::size_t i = 0; given < count; ++i, ++given)
    ++counts[rest[i].second];
  return counts;
}

/// Threads that the busiest CPU has when they are dealt out evenly.
long at_each(long threads, long cpus) {
  return (threads + cpus - 1) / cpus;
}

std::string crowded(const Pin& node, long threads) {
  return fmt::format(
      "{} threads of actors would share the {} CPUs of NUMA node {}, where the host has room for "
      "them",
      threads, node.cpus.size(), node.node);
}

}  // namespace

Pins pins_of(const std::vector<NumaNode>& nodes, const std::vector<int>& allowed,
             const std::vector<PinnedActor>& actors) {
  Pins result;
  result.of_actor.resize(actors.size());
  std::vector<Pin> usable;
  long all_cpus = 0;
  for (const auto& node : nodes) {
    Pin pin{node.id, {}};
    std::set_intersection(node.cpus.begin(), node.cpus.end(), allowed.begin(), allowed.end(),
                          std::back_inserter(pin.cpus));
    all_cpus += static_cast<long>(pin.cpus.size());
    if (!pin.cpus.empty()) usable.push_back(std::move(pin));
  }
  if (usable.size() < 2) return result;
  std::sort(usable.begin(), usable.end(),
            [](const auto& a, const auto& b) { return a.node < b.node; });

  std::vector<std::size_t> on_cpu;
  long all_threads = 0;
  for (std::size_t i = 0; i < actors.size(); ++i) {
    if (!actors[i].on_gpu) {
      on_cpu.push_back(i);
      all_threads += actors[i].threads;
      continue;
    }
    const auto near = std::find_if(usable.begin(), usable.end(),
                                   [&](const auto& pin) { return pin.node == actors[i].gpu_node; });
    if (near != usable.end())
      result.of_actor[i] = *near;
    else
      result.why_not =
          actors[i].gpu_node < 0
              ? "the NUMA node of its GPU is not known"
              : fmt::format("no CPU of NUMA node {}, its GPU's, is allowed", actors[i].gpu_node);
  }
  const auto counts = spread(static_cast<int>(on_cpu.size()), usable);
  auto next = on_cpu.begin();
  for (std::size_t n = 0; n < usable.size(); ++n) {
    const auto cpus = static_cast<long>(usable[n].cpus.size());
    long threads = 0;
    for (int i = 0; i < counts[n]; ++i, ++next) {
      threads += actors[*next].threads;
      result.of_actor[*next] = usable[n];
    }
    if (at_each(threads, cpus) <= at_each(all_threads, all_cpus)) continue;
    for (const auto i : on_cpu)
      result.of_actor[i].reset();
    result.why_not = crowded(usable[n], threads);
    break;
  }
  return result;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' '))
    text.remove_suffix(1);
  const auto whole = text;
  std::vector<int> cpus;
  while (!text.empty()) {
    const int first = take_number(text, whole);
    int last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      last = text.empty() ? -1 : take_number(text, whole);
    }
    const bool more = text.starts_with(',');
    if (more) text.remove_prefix(1);
    const bool in_order = first <= last && (cpus.empty() || first > cpus.back());
    if (!in_order || more == text.empty())
      throw std::invalid_argument("\"" + std::string(whole.substr(0, 80)) +
                                  "\" is no list of CPUs in order such as 0-3,8");
    for (int cpu = first; cpu <= last; ++cpu)
      cpus.push_back(cpu);
  }
  return cpus;
}

std::string cpu_list_text(const std::vector<int>& cpus) {
  std::string text;
  for (auto at = cpus.begin(); at != cpus.end();) {
    const int first = *at;
    int last = first;
    while (++at != cpus.end() && *at == last + 1)
      last = *at;
    text.append(text.empty() ? "" : ",").append(std::to_string(first));
    if (last > first) text.append("-").append(std::to_string(last));
  }
  return text;
}

namespace {

bool before(const LocalGpu& a, const LocalGpu& b) {
  // A domain beyond 0xffff has more digits.
  return std::tuple(a.bus_id.size(), a.bus_id) < std::tuple(b.bus_id.size(), b.bus_id);
}

void need_order(const std::vector<LocalGpu>& gpus, const CudaView& view) {
  const bool alike = std::all_of(gpus.begin(), gpus.end(),
                                 [&](const auto& gpu) { return gpu.model == gpus.front().model; });
  if (alike || view.order == "PCI_BUS_ID") return;
  throw std::invalid_argument(
      "the GPUs are of different models, and CUDA counts them by speed: "
      "CUDA_DEVICE_ORDER=PCI_BUS_ID would tell which is which");
}

}  // namespace

std::vector<LocalGpu> in_cuda_order(std::vector<LocalGpu> gpus, const CudaView& view) {
  std::sort(gpus.begin(), gpus.end(), before);
  if (!view.visible) {
    need_order(gpus, view);
    return gpus;
  }
  std::vector<LocalGpu> shown;
  std::istringstream names(*view.visible);
  for (std::string name; std::getline(names, name, ',');) {
    std::erase(name, ' ');
    if (name.starts_with("MIG"))
      throw std::invalid_argument("CUDA_VISIBLE_DEVICES names a part of a GPU, " +
                                  name.substr(0, 80));
    if (name.starts_with("GPU-")) {
      const auto is = [&](const auto& gpu) { return gpu.uuid.starts_with(name); };
      // CUDA shows nothing from the first on that it does not know.
      if (std::count_if(gpus.begin(), gpus.end(), is) != 1) break;
      shown.push_back(*std::find_if(gpus.begin(), gpus.end(), is));
      continue;
    }
    const auto index = parse_number<std::size_t>(name);
    if (!index || *index >= gpus.size()) break;
    need_order(gpus, view);
    shown.push_back(gpus[*index]);
  }
  return shown;
}

}  // namespace troupe::cluster
