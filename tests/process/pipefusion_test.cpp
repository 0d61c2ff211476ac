#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/oracle.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("pipefusion equals the oracle, whatever the number of stages and branches' actors") {
  Reference reference("pipefusion");
  std::vector<Parallelism> degrees;
  for (const int cfg : {1, 2}) {
    for (const int pp : {1, 2, 3, 4})
      degrees.push_back({.dp = 1, .cfg = cfg, .pp = pp});
  }
  CHECK(check_against_oracle(reference, degrees) > 300);
}

TEST_CASE("the oracle's cases tell stale from synchronous") {
  Reference reference("pipefusion");
  for (const std::string name : {"m2_k0", "m4_k1", "seven_rows_m3_k0", "two_prompts_m3_k1"}) {
    CAPTURE(name);
    const auto& of = reference.find(name);
    auto submission = reference.submission(of, {.dp = 1, .cfg = 1, .pp = 2});
    submission.request.method = "exact";
    submission.request.num_pipeline_patch = 1;
    const auto exact = shared_cluster().run(submission).latents.value();
    const double drift = range_error(exact, reference.floats(of, "latents"));
    CHECK(drift > 10 * kOracleBound);
    CHECK(drift < 0.5);
  }
}

TEST_CASE("the oracle's cases tell stale from predicted K,V") {
  Reference reference("pipefusion");
  for (const std::string name :
       {"m2_k0", "m3_k1", "m4_k1", "unguided_m3_k1", "seven_rows_m7_k2", "ms_m3_k1"}) {
    CAPTURE(name);
    const auto& of = reference.find(name + "_predict");
    const auto expected = reference.floats(of, "latents");
    const auto stale =
        latents_with(reference, of, [](ImageRequest& request) { request.kv = "stale"; });
    CHECK(range_error(stale, reference.floats(reference.find(name), "latents")) <= kOracleBound);
    CHECK(range_error(stale, expected) > 10 * kOracleBound);
  }
}

TEST_CASE("replicas of pipefusion make the pictures of one") {
  Reference reference("pipefusion");
  for (const std::string name : {"two_prompts_m3_k1", "two_prompts_m3_k1_predict"}) {
    const auto& of = reference.find(name);
    const auto expected = reference.floats(of, "latents");
    for (const Parallelism& degrees :
         {Parallelism{.dp = 3}, Parallelism{.dp = 2, .cfg = 2, .pp = 2},
          Parallelism{.dp = 2, .cfg = 1, .pp = 4}, Parallelism{.dp = 4, .cfg = 2, .pp = 1}}) {
      CAPTURE(name + " at " + name_of(degrees));
      const auto result = shared_cluster().run(reference.submission(of, degrees));
      CHECK(range_error(result.latents.value(), expected) <= kOracleBound);
      CHECK(result.pictures.size() == 4);
    }
  }
}

TEST_CASE("the same request makes the same bits again") {
  Reference reference("pipefusion");
  for (const std::string name : {"seven_rows_m4_k1", "seven_rows_m4_k1_predict"}) {
    CAPTURE(name);
    const auto submission =
        reference.submission(reference.find(name), {.dp = 1, .cfg = 2, .pp = 4});
    const auto first = shared_cluster().run(submission).latents.value();
    for (int i = 0; i < 10; ++i)
      CHECK(shared_cluster().run(submission).latents.value().data == first.data);
  }
}

TEST_CASE("patches and K,V that cannot be are refused") {
  Reference reference("pipefusion");
  auto submission = reference.submission(reference.find("m4_k1"));
  submission.request.num_pipeline_patch = 5;  // of 4 token rows
  const auto rows = shared_cluster().refusal(submission);
  CAPTURE(rows.what);
  CHECK(rows.code == ErrorCode::bad_request);
  CHECK(rows.what.find("5") != std::string::npos);
  submission.request.num_pipeline_patch = 4;
  submission.request.warmup_steps = 9;
  CHECK(shared_cluster().refusal(submission).what.find("warmup") != std::string::npos);
  submission.request.warmup_steps = 1;
  submission.request.kv = "guess";
  CHECK(shared_cluster().refusal(submission).what.find("guess") != std::string::npos);
  submission.request.kv = "stale";
  submission.request.method = "exact";
  CHECK(shared_cluster().refusal(submission).what.find("pipefusion") != std::string::npos);
}
