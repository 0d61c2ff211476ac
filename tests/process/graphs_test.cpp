// Actors that record their stages' blocks and replay them, beside actors that do not: the same
// bits. A recorder of LibTorch's calls on the CPU stands for a GPU's.
#include <signal.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "tests/support/variable.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// Environment for the actors that are started while it lives.
struct StandIn {
  Variable recorder{"TROUPE_CUDA_GRAPH", TROUPE_BINARY_DIR "/lib/libtroupe_graph_stand_in.so"};
  Variable kernels{"TROUPE_CPU_KERNELS", "library"};
};

cluster::ClusterOptions recording(int count, const std::string& log_folder = "") {
  auto options = actors(count);
  options.cuda_graphs = true;
  options.log_folder = log_folder;
  return options;
}

struct Graphs {
  std::uint64_t recorded = 0, replayed = 0;
  std::string why_plain;
};

std::vector<Graphs> graphs_of(const JobResult& result) {
  std::vector<Graphs> all;
  const auto report = json::parse(result.report);
  for (const auto& actor : report.at("actors")) {
    const auto& graphs = actor.at("cuda_graphs");
    all.push_back({graphs.at("recorded"), graphs.at("replayed"), graphs.at("why_plain")});
  }
  return all;
}

Submission of_case(const char* part, const char* name, Parallelism degrees = {}) {
  Reference reference(part);
  return reference.submission(reference.find(name), degrees);
}

Submission in_steps(Submission submission, const char* cache, double threshold) {
  submission.request.step_cache = cache;
  submission.request.step_cache_threshold = threshold;
  return submission;
}

}  // namespace

TEST_CASE("jobs whose blocks are replayed have the bits of jobs whose blocks are called") {
  const StandIn stand_in;
  FaultCluster plain(actors(4)), recorder(recording(4));
  std::vector<std::pair<std::string, Submission>> jobs;
  const auto add = [&](const char* part, const char* name, Parallelism degrees = {}) {
    jobs.emplace_back(std::string(part) + " " + name + " at " + name_of(degrees),
                      of_case(part, name, degrees));
  };
  for (const char* name : {"m2_k0", "m3_k1", "m4_k1_predict", "two_prompts_m3_k1"}) {
    add("pipefusion", name);
    add("pipefusion", name, {.cfg = 2, .pp = 2});
  }
  add("pipefusion", "all_warm_m3_k8", {.pp = 3});
  add("pipefusion", "two_prompts_m3_k1_predict", {.dp = 2, .pp = 2});
  Reference distrifusion("distrifusion"), families("families_patches"), videos("wan_patches");
  for (auto* reference : {&distrifusion, &families, &videos}) {
    std::size_t next = 0;
    for (const auto& of : reference->cases()) {
      const auto name = of.at("name").get<std::string>();
      if (next++ % 4 == 0) jobs.emplace_back(name, reference->submission(of));
      if (next % 4 == 2) jobs.emplace_back(name + " pp 2", reference->submission(of, {.pp = 2}));
    }
  }
  add("families", "hunyuan_two", {.pp = 3});
  add("families", "hunyuan_wide", {.pp = 4, .stages = {2, 1, 2, 1}});
  auto exact = demo_job();
  exact.request.method = "exact";
  exact.request.num_pipeline_patch = 1;
  jobs.emplace_back("exact", exact);
  auto half = demo_job();
  half.request.dtype = "bfloat16";
  jobs.emplace_back("bfloat16", half);
  for (const char* cache : {"first-block", "teacache"})
    jobs.emplace_back(cache, in_steps(demo_job(12), cache, 0.1));
  std::uint64_t replays = 0;
  for (const auto& [name, job] : jobs) {
    CAPTURE(name);
    const auto want = plain.run(job), got = recorder.run(job);
    CHECK(got.latents->data == want.latents->data);
    CHECK(!json::parse(want.report)["actors"][0].contains("cuda_graphs"));
    for (const auto& graphs : graphs_of(got)) {
      CHECK(graphs.why_plain == "");
      // In a short job no history may come twice.
      CHECK((graphs.recorded > 0 || job.request.steps < 5));
      CHECK(graphs.replayed >= graphs.recorded);
      replays += graphs.replayed;
    }
  }
  MESSAGE(jobs.size() << " jobs, " << replays << " replays");
}

TEST_CASE("each patch is recorded once, the second time that it comes alike") {
  const StandIn stand_in;
  FaultCluster cluster(recording(2));
  // Eight steps: the whole picture once, then three patches, of which the first time is plain.
  for (const auto& graphs : graphs_of(cluster.run(of_case("pipefusion", "m3_k1", {.pp = 2})))) {
    CHECK(graphs.recorded == 3);
    CHECK(graphs.replayed == 3 * 6);
  }
  // Steps of the whole picture are alike; each stage computes it in so many parts of the batch.
  const auto whole = cluster.run(of_case("pipefusion", "all_warm_m3_k8"));
  CHECK(graphs_of(whole).at(0).recorded >= 1);
  CHECK(graphs_of(whole).at(0).replayed >= 6);
}

TEST_CASE("jobs on the same actors, a cancelled one and a new epoch do not touch each other's") {
  const StandIn stand_in;
  FaultCluster plain(actors(2)), recorder(recording(2));
  auto one = of_case("pipefusion", "seven_rows_m4_k1_predict", {.pp = 2});
  auto other = one;
  other.request.seed = 77;
  const auto want_one = plain.run(one), want_other = plain.run(other);
  REQUIRE(want_one.latents->data != want_other.latents->data);
  const auto check_both = [&] {
    const auto first = recorder.submit(one), second = recorder.submit(other);
    const auto got_one = recorder.client().wait(first, std::chrono::seconds(600));
    const auto got_other = recorder.client().wait(second, std::chrono::seconds(600));
    REQUIRE(got_one);
    REQUIRE(got_other);
    CHECK(got_one.value().latents->data == want_one.latents->data);
    CHECK(got_other.value().latents->data == want_other.latents->data);
  };
  check_both();
  auto long_one = one;
  long_one.request.steps = 200;
  recorder.hold(0, {.step = 5});
  const auto cancelled = recorder.submit(long_one);
  recorder.held(0);
  REQUIRE(recorder.client().cancel(cancelled));
  CHECK(!recorder.client().wait(cancelled, std::chrono::seconds(600)));
  check_both();
  auto exact = demo_job(12);
  exact.request.method = "exact";
  exact.request.num_pipeline_patch = 1;
  exact.parallelism = {.pp = 2};
  const auto undisturbed = plain.run(exact);
  const auto result =
      recorder.struck(exact, 5, [&](std::uint64_t) { kill(recorder.pids().at(1), SIGKILL); });
  CHECK(result.latents->data == undisturbed.latents->data);
  CHECK(json::parse(result.report).at("recoveries").size() == 1);
  check_both();
}

TEST_CASE(
    "what exchanges within its blocks is called plainly, and the report and the log say why") {
  const StandIn stand_in;
  const Scratch logs;
  FaultCluster cluster(recording(2, logs.path.string()));
  auto job = of_case("pipefusion", "m3_k1", {.tp = 2});
  for (int i = 0; i < 2; ++i) {
    for (const auto& graphs : graphs_of(cluster.run(job))) {
      CHECK(graphs.recorded == 0);
      CHECK(graphs.why_plain == "tensor-parallel ranks add up in every block");
    }
  }
  job.parallelism = {.ring = 2};
  for (const auto& graphs : graphs_of(cluster.run(job)))
    CHECK(graphs.why_plain == "sequence ranks exchange in every block");
  const auto log = read_all(logs.path / "actor-0.log");
  const std::string line = "CUDA graphs are not used everywhere: tensor-parallel";
  CHECK(has(log, line));
  CHECK(log.find(line) == log.rfind(line));
}

TEST_CASE("actors without a recorder compute, and say what is missing") {
  const Variable nowhere("TROUPE_CUDA_GRAPH", "/nonexistent/libtroupe_cuda_graph.so");
  FaultCluster cluster(recording(1));
  const auto graphs = graphs_of(cluster.run(of_case("pipefusion", "m3_k1"))).at(0);
  CHECK(graphs.recorded == 0);
  CHECK(has(graphs.why_plain, "libtroupe_cuda_graph.so"));
}
