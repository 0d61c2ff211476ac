// Whole jobs by the actor's own program on a pretend GPU, which several of them share: streams run
// late and in any order, NCCL's receives occupy the device, errors stick.
#include <signal.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "controller/plan/machine.h"
#include "tests/process/support/compare.h"
#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// Starts an actor in its own place. To measure how fast the GPU is would take minutes, and mean
/// nothing.
constexpr const char* kScript = R"(#!/bin/sh
for word; do
  shift
  [ "$word" = --measure ] || set -- "$@" "$word"
done
here=$(dirname "$0")
if mv "$here/armed" "$here/struck" 2>/dev/null; then
  export TROUPE_PRETEND_STICKS_AT=$(cat "$here/struck")
fi
export TROUPE_PRETEND_SEED=$(cat "$here/seed") TROUPE_PRETEND_REPORT="$here/report"
export TROUPE_PRETEND_NAME="NVIDIA L40S"
export LD_LIBRARY_PATH="$here/pretend"
export LD_PRELOAD="$here/pretend/libcudart.so.13:$here/pretend/libnccl.so.2"
exec "$here/actor" "$@"
)";

class PretendGpu {
 public:
  explicit PretendGpu(int seed) : program_(scratch_.file("troupe-actor", kScript)) {
    std::filesystem::permissions(program_, std::filesystem::perms::owner_all);
    std::filesystem::create_symlink(TROUPE_BINARY_DIR "/pretend", scratch_ / "pretend");
    std::filesystem::create_symlink(TROUPE_BINARY_DIR "/bin/troupe-actor", scratch_ / "actor");
    scratch_.file("seed", std::to_string(seed));
  }
  cluster::ClusterOptions actors(int count) const {
    auto options = testing::actors(count);
    options.device = "cuda";
    options.actors_per_gpu = count;
    options.actor_program = program_;
    return options;
  }
  /// The next actor that is started runs into an error that sticks, at its n-th kernel.
  void arm(int kernel) const { scratch_.file("armed", std::to_string(kernel)); }
  bool struck() const { return std::filesystem::exists(scratch_ / "struck"); }
  /// Races and cycles of waits that it has found.
  std::string report() const {
    return std::filesystem::exists(scratch_ / "report") ? read_all(scratch_ / "report") : "";
  }

 private:
  Scratch scratch_;
  std::string program_;
};

Submission asked(const std::string& method, const Parallelism& degrees, int steps = 5) {
  auto job = tiny_job(steps);
  job.request.want_latents = true;
  job.request.method = method;
  job.request.num_pipeline_patch = method == "exact" ? 1 : 2;
  job.parallelism = degrees;
  return job;
}

}  // namespace

TEST_CASE("jobs on actors that share a pretend GPU have the latents that they have on CPUs") {
  FaultCluster plain(actors(3));
  std::vector<std::pair<std::string, Submission>> jobs{
      {"one", asked("exact", {})},
      {"pp 2", asked("exact", {.pp = 2})},
      {"pp 3, patches", asked("pipefusion", {.pp = 3})},
      {"pp 2, patches, predicted", asked("pipefusion", {.pp = 2})},
      {"cfg 2", asked("exact", {.cfg = 2})},
      {"ulysses 2", asked("exact", {.ulysses = 2})},
      {"ring 3, 3 decode", asked("exact", {.ring = 3, .vae = 3})},
      {"tp 2", asked("exact", {.tp = 2})},
      {"DistriFusion", asked("distrifusion", {.ring = 2})}};
  jobs[3].second.request.kv = "predict";
  auto unet = asked("distrifusion", {.ring = 2});
  unet.model = TROUPE_SOURCE_DIR "/tests/fixtures/tiny-sdxl";
  jobs.emplace_back("U-Net", unet);
  for (const int seed : {1, 2}) {
    CAPTURE(seed);
    PretendGpu gpu(seed);
    FaultCluster cluster(gpu.actors(3));
    for (const auto& [name, job] : jobs) {
      CAPTURE(name);
      const auto got = cluster.run(job);
      CHECK(range_error(*got.latents, *plain.run(job).latents) < 1e-5);
      REQUIRE(gpu.report() == "");
    }
    // Side by side, on what is loaded.
    const auto one = cluster.submit(jobs[1].second), other = cluster.submit(jobs[3].second);
    CHECK(cluster.client().wait(one, std::chrono::seconds(300)));
    CHECK(cluster.client().wait(other, std::chrono::seconds(300)));
    CHECK(gpu.report() == "");
  }
}

TEST_CASE("plans are made for the GPUs that actors say they have") {
  PretendGpu gpu(4);
  FaultCluster cluster(gpu.actors(2));
  REQUIRE(cluster.whole());
  auto inspector = take(Inspector::connect(cluster.cluster().endpoint(), kPatience), "connect");
  const auto machine = json::parse(take(inspector.machine(), "machine"));
  CHECK(machine["inside"]["bandwidth"] == plan::machine_of("l40").inside.bandwidth);
  CHECK(has(machine["notes"].dump(), "has NVIDIA L40S"));
}

TEST_CASE("a job outlives an actor that is killed on a pretend GPU, and one whose device is lost") {
  PretendGpu gpu(3);
  const auto job = asked("exact", {.pp = 2}, 30);
  Latents undisturbed;
  {
    FaultCluster cluster(gpu.actors(2));
    undisturbed = *cluster.run(job).latents;
    const auto result =
        cluster.struck(job, 4, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
    CHECK(result.latents->data == undisturbed.data);
  }
  // Whichever kernel it is: as the job begins, or in its midst.
  bool in_mid_job = false;
  for (const int kernel : {300, 1'000, 3'000}) {
    CAPTURE(kernel);
    gpu.arm(kernel);
    FaultCluster cluster(gpu.actors(2));
    REQUIRE(gpu.struck());
    const auto result = cluster.run(job);
    CHECK(result.latents->data == undisturbed.data);
    CHECK(cluster.restarts() == 1);
    const auto report = json::parse(result.report);
    for (const auto& recovery : report["recoveries"]) {
      const std::string cause = recovery["cause"];
      CHECK(has(cause, "exit code 4"));
      CHECK(has(cause, "its device cannot be used any more: error 700"));
      in_mid_job = in_mid_job || recovery["step"] >= 1;
    }
  }
  CHECK(in_mid_job);
  CHECK(gpu.report() == "");
}
