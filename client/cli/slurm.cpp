#include "client/cli/slurm.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "base/format.h"
#include "base/numbers.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kMostHosts = 65'536;

[[noreturn]] void refuse_slurm(const std::string& text, const std::string& why) {
  throw std::runtime_error("[slurm] \"" + text + "\": " + why);
}

/// Splits a list at commas outside of brackets.
std::vector<std::string> pieces(const std::string& list) {
  std::vector<std::string> all;
  std::string piece;
  int depth = 0;
  for (const char c : list) {
    if (c == '[') ++depth;
    if (c == ']') --depth;
    if (depth < 0 || depth > 1) refuse_slurm(list, "its brackets make no sense");
    if (c == ',' && depth == 0) {
      all.push_back(std::move(piece));
      piece.clear();
    } else {
      piece += c;
    }
  }
  if (depth != 0) refuse_slurm(list, "a bracket is not closed");
  all.push_back(std::move(piece));
  if (std::ranges::any_of(all, &std::string::empty)) refuse_slurm(list, "a name is missing");
  return all;
}

/// The numbers of `1-3,7`, with the leading zeros of each range's begin.
std::vector<std::string> numbers(const std::string& ranges, const std::string& list) {
  std::vector<std::string> all;
  for (const auto& range : pieces(ranges)) {
    const auto dash = range.find('-');
    const std::string low = range.substr(0, dash);
    const std::string high = dash == std::string::npos ? low : range.substr(dash + 1);
    const auto from = parse_number<std::uint32_t>(low);
    const auto to = parse_number<std::uint32_t>(high);
    if (!from || !to || *to < *from) refuse_slurm(list, "\"" + range + "\" is no range of numbers");
    if (*to - *from >= kMostHosts) refuse_slurm(list, "more than 65536 hosts");
    for (std::uint64_t number = *from; number <= *to; ++number) {
      const std::string digits = std::to_string(number);
      all.push_back(std::string(low.size() - std::min(low.size(), digits.size()), '0') + digits);
    }
  }
  return all;
}

std::vector<std::string> expanded(const std::string& piece, const std::string& list) {
  std::vector<std::string> all{""};
  std::string_view rest = piece;
  while (!rest.empty()) {
    const auto open = rest.find('[');
    for (auto& name : all)
      name += rest.substr(0, open);
    if (open == std::string_view::npos) break;
    const auto close = rest.find(']', open);
    const auto parts = numbers(std::string(rest.substr(open + 1, close - open - 1)), list);
    if (all.size() * parts.size() > kMostHosts) refuse_slurm(list, "more than 65536 hosts");
    std::vector<std::string> more;
    for (const auto& name : all) {
      for (const auto& part : parts)
        more.push_back(name + part);
    }
    all = std::move(more);
    rest.remove_prefix(close + 1);
  }
  return all;
}

std::string task_name(const std::string& node, std::uint32_t local) {
  return local == 0 ? node : fmt::format("{}-{}", node, local);
}

/// Reads the number of tasks per node: `2(x3),1` is 2, 2, 2, 1.
std::vector<std::uint32_t> task_counts(const std::string& text) {
  std::vector<std::uint32_t> counts;
  for (const auto& piece : pieces(text)) {
    const auto times_at = piece.find("(x");
    const auto count = parse_number<std::uint32_t>(piece.substr(0, times_at));
    std::optional<std::uint32_t> times = 1;
    if (times_at != std::string::npos && piece.back() == ')')
      times = parse_number<std::uint32_t>(
          std::string_view(piece).substr(times_at + 2, piece.size() - times_at - 3));
    if (!count || !times || *count > kMostHosts || counts.size() + *times > kMostHosts)
      refuse_slurm(text, "not so many tasks a node, as SLURM_STEP_TASKS_PER_NODE has them");
    counts.insert(counts.end(), *times, *count);
  }
  return counts;
}

/// The tasks by rank, where ranks run through a node before the next.
std::vector<SlurmTask::Place> block_ranks(const std::string& nodes,
                                          const std::string& tasks_per_node) {
  if (nodes.empty() || tasks_per_node.empty()) return {};
  const auto hosts = slurm_hosts(nodes);
  const auto counts = task_counts(tasks_per_node);
  std::vector<SlurmTask::Place> tasks;
  for (std::size_t i = 0; i < std::min(hosts.size(), counts.size()); ++i) {
    for (std::uint32_t local = 0; local < counts[i] && tasks.size() < kMostHosts; ++local)
      tasks.push_back({hosts[i], task_name(hosts[i], local)});
  }
  return tasks;
}

std::uint32_t number_in(const std::string& name, const std::string& value) {
  const auto number = parse_number<std::uint32_t>(value);
  if (!number) refuse_slurm(value, name + " is no number");
  return *number;
}

}  // namespace

std::vector<std::string> slurm_hosts(const std::string& list) {
  std::vector<std::string> hosts;
  for (const auto& piece : pieces(list)) {
    const auto some = expanded(piece, list);
    if (hosts.size() + some.size() > kMostHosts) refuse_slurm(list, "more than 65536 hosts");
    hosts.insert(hosts.end(), some.begin(), some.end());
  }
  return hosts;
}

std::optional<SlurmTask> slurm_task(
    const std::function<std::string(const std::string&)>& variable) {
  const std::string node = variable("SLURMD_NODENAME"), local = variable("SLURM_LOCALID");
  if (node.empty() || local.empty() || variable("SLURM_STEP_ID").empty()) return {};
  SlurmTask task;
  task.self = {node, task_name(node, number_in("SLURM_LOCALID", local))};
  if (const auto nodes = variable("SLURM_JOB_NODELIST"); !nodes.empty())
    task.first = slurm_hosts(nodes).front();
  const std::string rank = variable("SLURM_PROCID");
  if (rank.empty()) return task;
  auto tasks = block_ranks(variable("SLURM_STEP_NODELIST"), variable("SLURM_STEP_TASKS_PER_NODE"));
  const std::size_t mine = number_in("SLURM_PROCID", rank);
  if (mine < tasks.size() && tasks[mine].name == task.self.name) {
    tasks.resize(mine);
    task.before = std::move(tasks);
  }
  return task;
}

std::optional<SlurmTask> slurm_task() {
  return slurm_task([](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value ? value : "");
  });
}

}  // namespace troupe::cli
