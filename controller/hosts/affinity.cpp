#include "controller/hosts/affinity.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <algorithm>
#include <fstream>
#include <map>
#include <new>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "base/format.h"
#include "base/numbers.h"

namespace troupe::cluster {

namespace {

/// Set of CPUs with room for that many.
struct CpuSet {
  explicit CpuSet(int count)
      : cpus(CPU_ALLOC(static_cast<std::size_t>(count))),
        bytes(CPU_ALLOC_SIZE(static_cast<std::size_t>(count))) {
    if (!cpus) throw std::bad_alloc();
    CPU_ZERO_S(bytes, cpus);
  }
  ~CpuSet() { CPU_FREE(cpus); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  cpu_set_t* cpus;
  std::size_t bytes;
};

int run_on(const std::vector<int>& cpus) {
  CpuSet set(cpus.back() + 1);
  for (const int cpu : cpus)
    CPU_SET_S(static_cast<std::size_t>(cpu), set.bytes, set.cpus);
  return sched_setaffinity(0, set.bytes, set.cpus) == 0 ? 0 : errno;
}

}  // namespace

std::vector<int> allowed_cpus() {
  // The kernel wants room for all CPUs that it could have.
  for (int room = 1024; room <= 65536; room *= 4) {
    const CpuSet set(room);
    if (sched_getaffinity(0, set.bytes, set.cpus) != 0) {
      if (errno == EINVAL) continue;
      return {};
    }
    std::vector<int> cpus;
    for (int cpu = 0; cpu < room; ++cpu) {
      if (CPU_ISSET_S(static_cast<std::size_t>(cpu), set.bytes, set.cpus)) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

OnCpus::OnCpus(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  auto before = allowed_cpus();
  if (before.empty()) {
    error_ = "the CPUs of this process are not known";
  } else if (const int error = run_on(cpus)) {
    error_ = strerror(error);
  } else {
    before_ = std::move(before);
  }
}

OnCpus::~OnCpus() {
  if (before_.empty() || run_on(before_) == 0) return;
  // The cpuset was changed meanwhile: whatever it allows now.
  std::vector<int> all(static_cast<std::size_t>(std::max(before_.back() + 1, 1024)));
  std::iota(all.begin(), all.end(), 0);
  run_on(all);
}

namespace fs = std::filesystem;
namespace {

constexpr std::size_t kLongestFile = 65536;

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw std::runtime_error("[numa] " + file.string() + ": " + what);
}

std::string read(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text(kLongestFile + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad() || (stream.gcount() == 0 && !stream.eof())) fail(file, "it cannot be read");
  text.resize(static_cast<std::size_t>(stream.gcount()));
  if (text.size() > kLongestFile)
    fail(file, fmt::format("it has more than {} bytes", kLongestFile));
  return text;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error))
    found.push_back(at->path());
  return found;
}

std::string trimmed(std::string_view text) {
  const auto space = " \t\r\n";
  const auto first = text.find_first_not_of(space);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(space) - first + 1));
}

int node_of(const fs::path& device) {
  const auto file = device / "numa_node";
  std::error_code error;
  if (!fs::exists(file, error)) return -1;
  const auto text = trimmed(read(file));
  const auto node = parse_number<int>(text);
  if (!node || *node < -1) fail(file, "it is no number of a node: " + text.substr(0, 80));
  return *node;
}

}  // namespace

std::vector<NumaNode> read_numa_nodes(const fs::path& root) {
  std::vector<NumaNode> nodes;
  for (const auto& entry : entries(root / "sys/devices/system/node")) {
    const auto name = entry.filename().string();
    if (!name.starts_with("node")) continue;
    const auto id = parse_number<int>(std::string_view(name).substr(4));
    if (!id || *id < 0) continue;
    const auto file = entry / "cpulist";
    try {
      nodes.push_back({*id, parse_cpu_list(read(file))});
    } catch (const std::invalid_argument& error) {
      fail(file, error.what());
    }
  }
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  std::map<int, int> owner;
  for (const auto& node : nodes) {
    for (const int cpu : node.cpus) {
      const auto [first, fresh] = owner.emplace(cpu, node.id);
      if (!fresh)
        fail(root / "sys/devices/system/node",
             fmt::format("CPU {} is of node {} and of node {}", cpu, first->second, node.id));
    }
  }
  return nodes;
}

std::vector<LocalGpu> read_gpus(const fs::path& root) {
  std::vector<LocalGpu> gpus;
  for (const auto& entry : entries(root / "proc/driver/nvidia/gpus")) {
    LocalGpu gpu{.bus_id = entry.filename().string(), .uuid = {}, .model = {}};
    bool excluded = false;
    std::istringstream lines(read(entry / "information"));
    for (std::string line; std::getline(lines, line);) {
      const auto colon = line.find(':');
      if (colon == std::string::npos) continue;
      const auto key = trimmed(line.substr(0, colon));
      const auto value = trimmed(line.substr(colon + 1));
      if (key == "Model") gpu.model = value;
      if (key == "GPU UUID") gpu.uuid = value;
      if (key == "GPU Excluded") excluded = value == "Yes";
    }
    if (excluded) continue;
    gpu.node = node_of(root / "sys/bus/pci/devices" / gpu.bus_id);
    gpus.push_back(std::move(gpu));
  }
  return gpus;
}

}  // namespace troupe::cluster
