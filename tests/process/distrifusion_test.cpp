#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/oracle.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("distrifusion equals the oracle, whatever the number of stages and branches' actors") {
  Reference reference("distrifusion");
  std::vector<Parallelism> degrees;
  for (const int cfg : {1, 2}) {
    for (const int pp : {1, 2, 3})
      degrees.push_back({.dp = 1, .cfg = cfg, .pp = pp});
  }
  CHECK(check_against_oracle(reference, degrees) > 200);
}

TEST_CASE("distrifusion's cases tell it from exact, from pipefusion and from the other K,V") {
  Reference reference("distrifusion");
  for (const std::string name : {"m2_k0", "m4_k1", "seven_rows_m7_k0", "two_prompts_m3_k1"}) {
    for (const std::string kv : {"", "_predict"}) {
      CAPTURE(name + kv);
      const auto& of = reference.find(name + kv);
      const auto expected = reference.floats(of, "latents");
      const auto exact = latents_with(reference, of, [](ImageRequest& request) {
        request.method = "exact";
        request.num_pipeline_patch = 1;
        request.kv = "stale";
      });
      const auto pipefusion =
          latents_with(reference, of, [](ImageRequest& request) { request.method = "pipefusion"; });
      const auto other_kv = latents_with(reference, of, [](ImageRequest& request) {
        request.kv = request.kv == "stale" ? "predict" : "stale";
      });
      CHECK(range_error(exact, expected) < 0.5);
      for (const auto& other : {exact, pipefusion, other_kv})
        CHECK(range_error(other, expected) > 10 * kOracleBound);
    }
  }
}

TEST_CASE("replicas of distrifusion make the pictures of one") {
  Reference reference("distrifusion");
  const auto& of = reference.find("two_prompts_m3_k1_predict");
  const auto expected = reference.floats(of, "latents");
  for (const Parallelism& degrees :
       {Parallelism{.dp = 3}, Parallelism{.dp = 2, .cfg = 2, .pp = 2}, Parallelism{.dp = 4}}) {
    CAPTURE(name_of(degrees));
    const auto result = shared_cluster().run(reference.submission(of, degrees));
    CHECK(range_error(result.latents.value(), expected) <= kOracleBound);
    CHECK(result.pictures.size() == 4);
  }
}

TEST_CASE("distrifusion makes the same bits again") {
  Reference reference("distrifusion");
  const auto submission = reference.submission(reference.find("seven_rows_m7_k1_predict"),
                                               {.dp = 1, .cfg = 2, .pp = 3});
  const auto first = shared_cluster().run(submission).latents.value();
  for (int i = 0; i < 10; ++i)
    CHECK(shared_cluster().run(submission).latents.value().data == first.data);
}

TEST_CASE("distrifusion's patches and K,V that cannot be are refused") {
  Reference reference("distrifusion");
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
  const auto kv = shared_cluster().refusal(submission);
  CHECK(kv.code == ErrorCode::bad_request);
  CHECK(kv.what.find("guess") != std::string::npos);
}
