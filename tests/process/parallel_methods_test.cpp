#include "tests/process/support/compare.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/oracle.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Returns the share of the matrix: without TROUPE_FULL_MATRIX, each case runs at every seventh
/// mix, each mix with every seventh case.
std::size_t every() {
  return full_matrix() ? 1 : 7;
}

}  // namespace

TEST_CASE("pipefusion is the oracle's picture at any cfg, pp, ulysses, ring and tp") {
  Reference reference("pipefusion");
  CHECK(check_against_oracle(reference, axes_and_pairs(), every()) > 200);
}

TEST_CASE("distrifusion is the oracle's picture at any cfg, pp, ulysses, ring and tp") {
  Reference reference("distrifusion");
  CHECK(check_against_oracle(reference, axes_and_pairs(), every()) > 200);
}

TEST_CASE(
    "more ranks than rows in a patch, more ranks than heads, uneven rows: still one picture") {
  Submission submission;
  submission.model = odd_model().folder();  // five heads
  auto& request = submission.request;
  request.prompts = {"a red circle"};
  request.height = 112;  // seven rows of three tokens
  request.width = 48;
  request.steps = 5;
  request.num_pipeline_patch = 3;
  request.warmup_steps = 1;
  request.want_latents = true;
  const std::vector<Parallelism> mixes = {
      {.ulysses = 7},
      {.ring = 8},
      {.tp = 8},
      {.ulysses = 4, .ring = 2},
      {.ulysses = 2, .ring = 4},
      {.ulysses = 2, .ring = 2, .tp = 2},
      {.ulysses = 3, .tp = 2},
      {.pp = 8},
      {.pp = 2, .ring = 4},
      {.cfg = 2, .pp = 2, .tp = 2},
  };
  Worst worst;
  for (const std::string method : {"pipefusion", "distrifusion"}) {
    for (const std::string kv : {"stale", "predict"}) {
      request.method = method;
      request.kv = kv;
      submission.parallelism = {};
      const auto single = shared_cluster().run(submission).latents.value();
      for (const auto& mix : mixes) {
        const auto where = method + " " + kv + " at " + name_of(mix);
        CAPTURE(where);
        submission.parallelism = mix;
        const double error = range_error(shared_cluster().run(submission).latents.value(), single);
        CHECK(error <= 1e-5);
        worst.see(error, where);
      }
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}
