#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/client/run_command.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "troupe/inspect.h"

namespace troupe::testing {

/// A cluster whose controller is asked as a user would.
struct WatchedStage {
  explicit WatchedStage(int count, const std::string& log_folder = "",
                        const std::vector<std::string>& plugins = {})
      : cluster(options(count, log_folder, plugins)) {}

  static cluster::ClusterOptions options(int count, const std::string& log_folder,
                                         const std::vector<std::string>& plugins) {
    auto options = actors(count);
    options.log_folder = log_folder;
    options.metrics_port = 0;
    options.plugins = plugins;
    return options;
  }
  std::string endpoint() { return cluster.cluster().endpoint(); }
  CommandResult repl(const std::string& commands) {
    return troupe("repl " + endpoint() + " -c '" + commands + "'");
  }
  Inspector& inspector() { return cluster.inspector(); }
  /// Waits until what was issued has run.
  bool still(std::uint64_t job) {
    return eventually(kPatience, [&] {
      const auto graph = nlohmann::json::parse(inspector().graph(job).value());
      int issued = 0;
      for (const auto& task : graph["tasks"])
        issued += task["state"] == "issued" ? 1 : 0;
      return issued == 0 && !graph["tasks"].empty();
    });
  }
  /// Submits a job of at least ten steps that actor 0 takes part in, and pauses it in its midst.
  std::uint64_t paused_job(Submission submission) {
    submission.detached = true;
    cluster.hold(0, {.step = 2});
    const auto job = cluster.submit(submission);
    cluster.held(0);
    REQUIRE(inspector().control(job, JobAction::pause));
    cluster.release(0);
    REQUIRE(still(job));
    return job;
  }

  FaultCluster cluster;
};

}  // namespace troupe::testing
