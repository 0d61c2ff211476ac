// Blows at moments that are over before anybody could freeze them: groups being connected, a result
// being handed over.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

/// Jobs end by their first loss, and only one of the two layouts has room.
cluster::ClusterOptions mortal() {
  auto options = actors(4);
  options.max_recoveries = 0;
  options.memory_limit = memory_of(whole_demo_job());
  return options;
}

void check_same(const JobResult& one, const JobResult& other) {
  REQUIRE(one.pictures.size() == 1);
  CHECK(one.pictures[0].png == other.pictures[0].png);
  CHECK(one.latents->data == other.latents->data);
}

}  // namespace

TEST_CASE("kill -9 while groups are connected: the job fails with that cause, the next one works") {
  FaultCluster cluster(mortal());
  const auto undisturbed = cluster.run(demo_job());
  std::optional<Fall> fall;
  for (int attempt = 0; attempt < 100 && !fall; ++attempt) {
    cluster.run(whole_demo_job());  // what the next one needs must be loaded, and then connected
    REQUIRE(cluster.whole());
    const auto restarts = cluster.restarts();
    const auto job = cluster.submit(demo_job());
    bool struck = false;
    REQUIRE(eventually(kPatience, [&] {
      for (const auto& actor : cluster.status().actors) {
        if (!has(actor.doing, "connecting")) continue;
        kill(static_cast<pid_t>(actor.pid), SIGKILL);
        return struck = true;
      }
      const auto state = cluster.job(job)->state;
      return state == "running" || state == "succeeded";
    }));
    fall = cluster.fall_of(job, Clock::now());
    if (struck) REQUIRE(eventually(kPatience, [&] { return cluster.restarts() > restarts; }));
    // A word that was on its way may have moved the job on.
    if (fall && !has(fall->error.what, "connecting")) fall.reset();
    REQUIRE(cluster.whole());
  }
  REQUIRE(fall);
  CHECK(has(fall->error.what, "signal 9"));
  check_same(cluster.run(demo_job()), undisturbed);
}

TEST_CASE("kill -9 while a job's result is handed over: it keeps its picture and says what lacks") {
  auto options = actors(4);
  options.max_recoveries = 0;
  FaultCluster cluster(options);
  auto job = demo_job(2);
  job.request.height = job.request.width = 512;  // some time to decode
  const auto undisturbed = cluster.run(job);
  std::string warnings;
  // Again, where the job had ended before.
  for (int attempt = 0; attempt < 20 && warnings.empty(); ++attempt) {
    const auto id = cluster.submit(job);
    const auto decoders = [&] {
      const auto now = cluster.status().actors;
      return std::count_if(now.begin(), now.end(),
                           [](const auto& actor) { return has(actor.doing, "decode"); });
    };
    REQUIRE(eventually(kPatience,
                       [&] { return decoders() > 0 || cluster.job(id)->state == "succeeded"; }));
    // The first stage holds no latents: it has only its figures to give, and does not get to it.
    std::vector<pid_t> idle;
    for (const auto& actor : cluster.status().actors) {
      const bool first = std::any_of(
          actor.groups.begin(), actor.groups.end(),
          [](const auto& group) { return group.axis == "pp" && group.rank_in_group == 0; });
      if (first && !has(actor.doing, "decode")) idle.push_back(static_cast<pid_t>(actor.pid));
    }
    for (const auto pid : idle)
      kill(pid, SIGSTOP);
    REQUIRE(eventually(kPatience, [&] { return decoders() == 0; }));
    std::this_thread::sleep_for(300ms);  // the picture comes to the controller
    for (const auto pid : idle)
      kill(pid, SIGKILL);
    const auto result = cluster.client().wait(id, kPatience);
    CHECK(gone(idle));
    REQUIRE(cluster.whole());
    if (!result) continue;  // it had not come yet
    check_same(result.value(), undisturbed);
    const auto report = nlohmann::json::parse(result.value().report);
    for (const auto& warning : report["warnings"])
      warnings += warning.get<std::string>() + "\n";
  }
  INFO(warnings);
  CHECK(has(warnings, "the figures of "));
  CHECK(has(warnings, " missing: "));
  check_same(cluster.run(job), undisturbed);
}
