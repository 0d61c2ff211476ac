// Actors that rehearse their jobs, as they do on a GPU, beside actors that do not: the same bits.
#include <signal.h>

#include <cstdlib>
#include <list>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/img2img.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/reference.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "tests/support/variable.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// Environment for the actors that are started while it lives.
struct Rehearse {
  Variable rehearse{"TROUPE_REHEARSE", "on"};
};

struct Rehearsing {
  Rehearse switched_on;
  FaultCluster cluster;
  explicit Rehearsing(int count) : cluster(actors(count)) {}
};

Submission exact(const Parallelism& degrees, int steps = 6) {
  auto job = demo_job(steps);
  job.request.method = "exact";
  job.request.num_pipeline_patch = 1;
  job.parallelism = degrees;
  return job;
}

}  // namespace

TEST_CASE(
    "jobs that are rehearsed have the bits of jobs that are not, whatever family and method") {
  FaultCluster plain(actors(4));
  Rehearsing rehearsing(4);
  std::list<Reference> references;  // whose folders the jobs read
  std::vector<std::pair<std::string, Submission>> jobs;
  const auto some_of = [&](const char* part, std::size_t every,
                           const std::vector<Parallelism>& degrees) {
    Reference& reference = references.emplace_back(part);
    std::size_t next = 0;
    for (const auto& of : reference.cases()) {
      if (next++ % every != 0) continue;
      const auto& own = degrees[next / every % degrees.size()];
      jobs.emplace_back(std::string(part) + " " + of.at("name").get<std::string>(),
                        reference.submission(of, own));
    }
  };
  some_of("pipefusion", 3, {{.pp = 2}, {.cfg = 2, .pp = 2}, {.ring = 2}, {.pp = 2, .ulysses = 2}});
  some_of("distrifusion", 3, {{.ring = 2}, {}, {.pp = 2}});
  some_of("families_patches", 4, {{.pp = 2}, {.ulysses = 2}, {}});
  some_of("wan_patches", 4, {{.pp = 2}, {}});
  jobs.emplace_back("tp", exact({.tp = 2}));
  jobs.emplace_back("ring, ulysses", exact({.ulysses = 2, .ring = 2}));
  jobs.emplace_back("cfg, parallel decoding", exact({.cfg = 2, .vae = 2}));
  jobs.emplace_back("stages of parts", exact({.pp = 4}));
  auto refills = demo_job(8);
  refills.request.warmup_steps = 0;
  refills.request.refill_steps = {4};
  jobs.emplace_back("no warm-up, refilled", refills);
  auto masked = exact({.pp = 2});
  masked.request.init_image = read_all(kFixtures + "init/picture.png");
  masked.request.mask_image = read_all(kFixtures + "init/mask.png");
  jobs.emplace_back("a mask", masked);
  auto preview = exact({.pp = 2});
  preview.request.progress_interval = 5;
  preview.request.progress_content = "preview";
  jobs.emplace_back("previews", preview);
  for (const char* cache : {"first-block", "teacache"}) {
    auto cached = exact({.pp = 2}, 12);
    cached.request.step_cache = cache;
    cached.request.step_cache_threshold = 0.1;
    jobs.emplace_back(cache, cached);
  }
  for (const auto& [name, job] : jobs) {
    CAPTURE(name);
    const auto want = plain.run(job), got = rehearsing.cluster.run(job);
    CHECK(got.latents->data == want.latents->data);
    for (std::size_t i = 0; i < want.pictures.size(); ++i)
      CHECK(got.pictures.at(i).png == want.pictures[i].png);
  }
  MESSAGE(jobs.size() << " jobs");
}

TEST_CASE("U-Nets are rehearsed, too") {
  FaultCluster plain(actors(2));
  Rehearsing rehearsing(2);
  for (const char* model : {"tiny-sd15", "tiny-sdxl"}) {
    auto job = tiny_job(6);
    job.model = std::string(TROUPE_SOURCE_DIR "/tests/fixtures/") + model;
    for (const char* method : {"exact", "distrifusion"}) {
      CAPTURE(model);
      CAPTURE(method);
      job.request.method = method;
      job.request.num_pipeline_patch = job.request.method == "exact" ? 1 : 2;
      job.parallelism.ring = 2;
      CHECK(rehearsing.cluster.run(job).latents->data == plain.run(job).latents->data);
    }
  }
}

TEST_CASE("a job that an actor is lost from is rehearsed by the next one and goes on") {
  FaultCluster plain(actors(2));
  Rehearsing rehearsing(2);
  const auto job = exact({.pp = 2}, 12);
  const auto undisturbed = plain.run(job);
  const auto result = rehearsing.cluster.struck(
      job, 5, [&](std::uint64_t) { kill(rehearsing.cluster.pids().at(1), SIGKILL); });
  CHECK(result.latents->data == undisturbed.latents->data);
  CHECK(json::parse(result.report).at("recoveries").size() == 1);
}
