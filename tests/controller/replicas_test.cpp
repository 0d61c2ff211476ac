// How work is shared out over replicas: of one job, and of many.
#include <rapidcheck.h>
#include <algorithm>

#include "controller/deployments/deployments.h"
#include "tests/controller/idle_environment.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;

TEST_CASE("prompts × n are split over replicas so that none has two pictures more than another") {
  CHECK(rc::check([] {
    wire::ImageRequest request;
    request.prompts.assign(*rc::gen::inRange(1, 8), "x");
    request.images_per_prompt = *rc::gen::inRange(1, 6);
    const int pictures = static_cast<int>(request.prompts.size()) * request.images_per_prompt;
    const wire::Parallelism degrees{.dp = *rc::gen::inRange(1, pictures + 1)};
    const auto plan = plan::make_plan(test::sample_model(), request, degrees);
    RC_ASSERT(plan.images.size() == static_cast<std::size_t>(degrees.dp));
    int next = 0, least = pictures, most = 0;
    for (const auto& slice : plan.images) {
      RC_ASSERT(slice.begin == next);
      next = slice.end;
      least = std::min(least, slice.end - slice.begin);
      most = std::max(most, slice.end - slice.begin);
    }
    RC_ASSERT(next == pictures);
    RC_ASSERT(least >= 1);
    RC_ASSERT(most - least <= 1);
  }));
}

TEST_CASE("jobs go to the replica that has fewest, and a slow one gets fewer of them") {
  constexpr std::size_t kTogether = 4;
  cluster::Members members("secret");
  test::IdleEnvironment environment;
  cluster::Deployments deployments(environment, members);
  wire::ImageRequest request;
  request.prompts = {"x"};
  const auto plan = plan::make_plan(test::sample_model(), request, {});
  const cluster::Model model{.folder = "m", .fingerprint = 1};
  for (int i = 0; i < 2; ++i)
    deployments.load(model, plan, {test::add_idle(members, "here")});
  // One replica ends a job at every tick, the other at every third one; there are always more.
  std::map<std::uint64_t, std::vector<std::uint64_t>> had;  // by deployment
  std::uint64_t next = 1;
  const auto fill = [&] {
    while (const auto found = deployments.find(model, plan, kTogether)) {
      for (const auto& [id, jobs] : had)
        CHECK(found->jobs.size() <= deployments.get(id)->jobs.size());
      deployments.enter(found, next, plan);
      had[found->id].push_back(next++);
    }
  };
  const auto end_one = [&](std::uint64_t id) {
    const auto deployment = deployments.get(id);
    deployments.leave(deployment, deployment->jobs.begin()->first);
  };
  fill();
  REQUIRE(had.size() == 2);
  CHECK(had[1].size() == kTogether);
  CHECK(had[2].size() == kTogether);
  for (int tick = 1; tick <= 30; ++tick) {
    end_one(1);
    if (tick % 3 == 0) end_one(2);
    fill();
  }
  CHECK(had[1].size() == kTogether + 30);
  CHECK(had[2].size() == kTogether + 10);
}
