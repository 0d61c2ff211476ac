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
  Inspector inspector() { return std::move(Inspector::connect(endpoint(), kPatience).value()); }
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
  bool has_steps_left(std::uint64_t job) {
    const auto graph = nlohmann::json::parse(inspector().graph(job).value());
    for (const auto& task : graph["tasks"])
      if (task["kind"] == "micro_step" && task["state"] != "done") return true;
    return false;
  }
  /// Submits and pauses as soon as it denoises; another one, where that was too late.
  std::uint64_t paused_job(Submission submission) {
    submission.detached = true;
    for (int attempt = 1;; ++attempt) {
      const auto job = cluster.submit(submission);
      REQUIRE(eventually(2 * kPatience, [&] {
        const auto row = cluster.job(job);
        return row && (row->step > 0 || row->state == "succeeded");
      }));
      const bool paused = bool(inspector().control(job, JobAction::pause));
      if (paused && still(job) && has_steps_left(job)) return job;
      REQUIRE(attempt < 5);
      if (paused) REQUIRE(inspector().control(job, JobAction::resume));
      REQUIRE(cluster.client().wait(job, std::chrono::seconds(600)));
    }
  }

  FaultCluster cluster;
};

}  // namespace troupe::testing
