#pragma once
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/scratch.h"

namespace troupe::testing {

/// A cluster of `count` actors of its own that other hosts can reach.
inline cluster::ClusterOptions open_to_hosts(int count) {
  auto options = actors(count);
  options.listen = "tcp://127.0.0.1:0";
  return options;
}

/// A `troupe join` of this machine that calls itself another one; through `endpoint` where that is
/// not the cluster's own.
class JoinedHostProcess {
 public:
  JoinedHostProcess(FaultCluster& cluster, const std::string& name, int actors,
                    const std::vector<std::string>& more = {}, std::string endpoint = "")
      : cluster_(cluster), name_(name) {
    if (endpoint.empty()) endpoint = cluster.cluster().endpoint();
    std::vector<std::string> words = {
        "join", "--connect", endpoint, "--actors", std::to_string(actors), "--name", name};
    words.insert(words.end(), more.begin(), more.end());
    command_ = std::make_unique<Command>(words, folder_.path.string());
  }

  Command& command() { return *command_; }
  std::vector<ActorInfo> rows() {
    auto rows = cluster_.status().actors;
    std::erase_if(rows, [&](const auto& actor) { return actor.host != name_; });
    return rows;
  }
  std::vector<pid_t> pids() {
    std::vector<pid_t> pids;
    for (const auto& actor : rows())
      pids.push_back(static_cast<pid_t>(actor.pid));
    return pids;
  }
  bool all(ActorState state, std::size_t count, std::chrono::milliseconds deadline = kPatience) {
    return eventually(deadline, [&] {
      const auto actors = rows();
      return actors.size() == count &&
             std::all_of(actors.begin(), actors.end(),
                         [&](const auto& actor) { return actor.state == state; });
    });
  }

 private:
  FaultCluster& cluster_;
  std::string name_;
  Scratch folder_;
  std::unique_ptr<Command> command_;
};

}  // namespace troupe::testing
