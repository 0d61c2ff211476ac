#include <signal.h>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

Submission parallel_job(const std::string& method, const Parallelism& degrees, int steps) {
  auto submission = demo_job(steps);
  submission.request.method = method;
  submission.request.kv = "predict";
  submission.parallelism = degrees;
  return submission;
}

}  // namespace

TEST_CASE("kill -9 within a sequence or tensor group: the job fails at once, the next is whole") {
  auto options = actors(4);
  options.max_recoveries = 0;
  FaultCluster cluster(options);
  struct Blow {
    const char* method;
    Parallelism degrees;
    std::size_t victim;
  };
  const Blow blows[] = {{"pipefusion", {.ulysses = 2, .tp = 2}, 3},
                        {"distrifusion", {.ring = 2, .tp = 2}, 0},
                        {"pipefusion", {.pp = 2, .ring = 2, .vae = 3}, 2}};
  for (const auto& blow : blows) {
    const auto where = std::string(blow.method) + " at " + name_of(blow.degrees);
    CAPTURE(where);
    const auto undisturbed = cluster.run(parallel_job(blow.method, blow.degrees, 4));
    const auto restarts = cluster.restarts();
    cluster.hold(0, {.step = 2});
    const auto job = cluster.submit(parallel_job(blow.method, blow.degrees, 4));
    cluster.held(0);
    const auto victim = cluster.status().actors.at(blow.victim);
    const auto time = std::chrono::steady_clock::now();
    kill(static_cast<pid_t>(victim.pid), SIGKILL);
    const auto fall = cluster.fall_of(job, time);
    REQUIRE(fall);
    MESSAGE(where << ": failed " << int(fall->seconds * 1000)
                  << " ms after the kill: " << fall->error.what);
    CHECK(fall->seconds < kAtOnce);
    for (const auto& word : {"actor " + std::to_string(victim.id) + " ",
                             "pid " + std::to_string(victim.pid), std::string("signal 9")}) {
      CAPTURE(word);
      CHECK(fall->error.what.find(word) != std::string::npos);
    }
    const auto again = cluster.run(parallel_job(blow.method, blow.degrees, 4));
    CHECK(again.pictures[0].png == undisturbed.pictures[0].png);
    CHECK(again.latents->data == undisturbed.latents->data);
    CHECK(cluster.restarts() == restarts + 1);
  }
  CHECK(left_in_memory() == "");
}
