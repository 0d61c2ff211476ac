#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "controller/plan/plan.h"
#include "tests/controller/any_plan.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::make_plan;
using plan::Plan;
using plan::Stage;
using namespace troupe::test;

namespace {

std::string why(const wire::ImageRequest& request, const wire::Parallelism& parallelism) {
  try {
    make_plan(sample_model(), request, parallelism);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

int size_of(const wire::RowRange& run) {
  return run.end - run.begin;
}

}  // namespace

TEST_CASE("the micro-steps of a step cover each token row once, evenly, remainders first") {
  CHECK(rc::check([] {
    const auto request = any_request();
    const auto parallelism = any_degrees();
    const auto plan = make_plan(sample_model(), request, parallelism);
    const int ring = parallelism.ring, ulysses = parallelism.ulysses;
    const bool waves = request.method == Method::distrifusion;
    RC_ASSERT(plan.patches == make_plan(sample_model(), request, {}).patches);
    std::vector<int> times(plan.token_rows, 0);
    for (std::size_t micro = 0; micro < plan.micro_steps.size(); ++micro) {
      const auto& shares = plan.micro_steps[micro].of_rank;
      RC_ASSERT(static_cast<int>(shares.size()) == ring * ulysses);
      for (const auto& run : shares) {
        for (int row = run.begin; row < run.end; ++row)
          ++times[row];
      }
      // Who shares a patch: everybody, or the ulysses ranks of one ring rank.
      const int sharers = waves ? ulysses : ring * ulysses;
      for (int first = 0; first < ring * ulysses; first += sharers) {
        const std::size_t patch = waves ? micro * ring + first / ulysses : micro;
        int next = patch < plan.patches.size() ? plan.patches[patch].begin : 0;
        const int end = patch < plan.patches.size() ? plan.patches[patch].end : 0;
        for (int i = first; i < first + sharers; ++i) {
          if (patch < plan.patches.size()) RC_ASSERT(shares[i].begin == next);
          next += size_of(shares[i]);
          RC_ASSERT(size_of(shares[i]) <= size_of(shares[first]));
          RC_ASSERT(size_of(shares[i]) >= size_of(shares[first]) - 1);
          // RC_ASSERT looks at both sides of an ||.
          if (i > first) RC_ASSERT(size_of(shares[i]) <= size_of(shares[i - 1]));
        }
        RC_ASSERT(next == end);
      }
    }
    RC_ASSERT(times == std::vector<int>(plan.token_rows, 1));
  }));
}

TEST_CASE("waves of distrifusion: as many patches side by side as ring ranks") {
  const auto plan = make_plan(sample_model(), square_request(Method::distrifusion, 5, 1),
                              {.ulysses = 2, .ring = 2});
  REQUIRE(plan.micro_steps.size() == 3);
  using Runs = std::vector<wire::RowRange>;
  CHECK(plan.micro_steps[0].of_rank == Runs{{0, 2}, {2, 4}, {4, 6}, {6, 7}});
  CHECK(plan.micro_steps[1].of_rank == Runs{{7, 9}, {9, 10}, {10, 12}, {12, 13}});
  CHECK(plan.micro_steps[2].of_rank == Runs{{13, 15}, {15, 16}, {0, 0}, {0, 0}});
  CHECK(
      make_plan(sample_model(), square_request(Method::pipefusion, 5, 1), {.ulysses = 2, .ring = 2})
          .micro_steps.size() == 5);
}

TEST_CASE("a whole picture goes through a pipeline part by part of the batch") {
  CHECK(rc::check([] {
    const auto parallelism = any_degrees();
    const auto plan = make_plan(sample_model(), any_request(), parallelism);
    RC_ASSERT(plan.batch_parts.size() == plan.images.size());
    for (std::size_t dp = 0; dp < plan.images.size(); ++dp) {
      const auto& parts = plan.batch_parts[dp];
      RC_ASSERT(parallelism.pp > 1 || parts.size() == 1u);
      RC_ASSERT(static_cast<int>(parts.size()) <= 2 * parallelism.pp);
      int next = 0;
      for (const auto& part : parts) {
        RC_ASSERT(part.begin == next);
        RC_ASSERT(part.end > part.begin);
        next = part.end;
      }
      RC_ASSERT(next == size_of(plan.images[dp]) * plan.branches_per_actor());
    }
  }));
}

TEST_CASE("stages may be listed, and lists that do not add up are refused") {
  const auto request = square_request();
  CHECK(make_plan(sample_model(), request, {.pp = 3, .stages = {1, 5, 2}}).stages ==
        std::vector<Stage>{{0, 1}, {1, 6}, {6, 8}});
  CHECK(make_plan(sample_model(), request, {.stages = {8}}).stages == std::vector<Stage>{{0, 8}});
  CHECK(why(request, {.pp = 2, .stages = {8}}) == "[plan] `stages` lists 1 stage, but `pp` is 2");
  CHECK(why(request, {.stages = {4, 4}}) == "[plan] `stages` lists 2 stages, but `pp` is 1");
  CHECK(why(request, {.pp = 2, .stages = {4, 3}}) ==
        "[plan] `stages` add up to 7 blocks, but the transformer has 8");
  CHECK(why(request, {.pp = 2, .stages = {4, 5}}).starts_with("[plan] `stages` add up to 9"));
  CHECK(why(request, {.pp = 2, .stages = {8, 0}}) ==
        "[plan] `stages` has a stage of 0 blocks: the transformer has 8");
  CHECK(
      why(request, {.pp = 3, .stages = {8, -1, 1}}).starts_with("[plan] `stages` has a stage of"));
}

TEST_CASE("parallel decoding and predicted K,V are refused where there is no such thing") {
  auto request = square_request();
  CHECK(why(request, {.cfg = 2, .vae = 2}) == "accepted");
  CHECK(why(request, {.vae = 2}) == "[plan] `vae` is 2, but the degrees give a picture 1 actor");
  CHECK(why(request, {.cfg = 2, .vae = 0}).starts_with("[plan] `vae` is 0"));
  request.images_per_prompt = 2;
  CHECK(why(request, {.dp = 2, .pp = 2, .vae = 3}) ==
        "[plan] `vae` is 3, but the degrees give a picture 2 actors");
  request.height = 16;  // 2 rows of latents, one of tokens
  CHECK(why(request, {.ulysses = 3, .vae = 3}) ==
        "[plan] `vae` is 3, but the latents have only 2 rows to split");
  CHECK(why(request, {.ulysses = 3, .vae = 2}) == "accepted");
  request = square_request();
  request.kv = KvUse::predict;
  CHECK(why(request, {}).starts_with("[plan] `kv` is predict, but `method` is exact"));
  for (const auto method : {Method::pipefusion, Method::distrifusion}) {
    request = square_request(method, 2, 1);
    request.kv = KvUse::predict;
    CHECK(why(request, {.ulysses = 5}) == "accepted");  // more ranks than heads
    CHECK(why(request, {.tp = 7}) == "accepted");
  }
  CHECK(why(square_request(), {.ring = 0}) ==
        "[plan] `ring` is 0: a number from 1 to 1024 is needed");
}
