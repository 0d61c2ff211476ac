#include "base/text.h"
#include "controller/deployments/memory_room.h"

#include <algorithm>
#include <string>
#include <vector>

#include "controller/jobs/replan.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using Numbers = std::vector<std::uint64_t>;

TEST_CASE("a refusal names what a rank needs of what, and the nearest degrees that fit") {
  wire::JobSpec job;
  job.request.prompts = {"x"};
  const auto& model = test::sample_model();
  const auto plan = plan::make_plan(model, job.request, {});
  const auto limit = plan.memory[0].peak() - plan.memory[0].weights / 3;
  const cluster::Shortage lack{
      .rank = 0, .needs = plan.memory[0].peak(), .actor = 2, .limit = limit};
  const auto text = cluster::too_large(plan, lack, "actor 2");
  CHECK(text.starts_with("[memory] rank 0 needs " + bytes_text(lack.needs) + " (weights "));
  CHECK(text.ends_with("actor 2 may hold " + bytes_text(limit)));
  const auto fits = [&](const plan::Plan& other) {
    return std::all_of(other.memory.begin(), other.memory.end(),
                       [&](const auto& own) { return own.peak() <= limit; });
  };
  const auto remedy = [&](int actors, const auto& enough) {
    return cluster::memory_remedy(model, job, actors, enough);
  };
  CHECK(remedy(4, fits).starts_with("--pp 2 needs "));
  const auto lighter = [&](const plan::Plan& other) {
    return other.memory[0].weights < plan.memory[0].weights * 6 / 10;
  };
  CHECK(remedy(1, lighter).starts_with("--dtype bfloat16 needs "));
  const auto nothing = [](const plan::Plan&) { return false; };
  CHECK(remedy(4, nothing).starts_with("no pp, tp or shared decoding by itself on 4 actors"));
  CHECK(remedy(1, nothing).starts_with("no pp, tp or shared decoding on 1 actor is enough; more"));
  // A large picture, of which decoding is the most.
  job.request.height = job.request.width = 512;
  const auto decodes = [](const plan::Plan& other) {
    return std::all_of(other.memory.begin(), other.memory.end(),
                       [](const auto& own) { return own.vae < 60'000'000; });
  };
  CHECK(remedy(1, decodes).starts_with("--vae-tiling needs "));
  job.parallelism.pp = 2;
  CHECK(remedy(2, decodes).starts_with("--vae-parallel 2 needs "));
}

TEST_CASE("where no degree alone fits, the mix that the planner picks is named") {
  wire::JobSpec job;
  job.request.prompts = {"x"};
  job.request.height = job.request.width = 256;
  const auto& model = test::sample_model();
  const auto machine = plan::machine_here(DeviceKind::cpu, 4, 4);
  const auto peak = [](const plan::Plan& plan) {
    std::uint64_t most = 0;
    for (const auto& own : plan.memory)
      most = std::max(most, own.peak());
    return most;
  };
  std::uint64_t alone = plan::make_plan(model, job.request, {}).memory[0].peak();
  using Degree = std::int32_t wire::Parallelism::*;
  for (const Degree degree :
       {&wire::Parallelism::pp, &wire::Parallelism::tp, &wire::Parallelism::vae}) {
    for (int n = 2; n <= 4; ++n) {
      wire::Parallelism parallelism;
      parallelism.*degree = n;
      try {
        alone = std::min(alone, peak(plan::make_plan(model, job.request, parallelism)));
      } catch (const std::invalid_argument&) {  // more than the model takes
      }
    }
  }
  const auto remedy = [&](std::uint64_t limit) {
    return cluster::memory_remedy(
        model, job, 4, [&](const plan::Plan& other) { return peak(other) <= limit; }, {},
        [&] { return cluster::fitting_mix(model, job.request, 4, machine, limit); });
  };
  const auto mix = remedy(alone - 1);
  CAPTURE(mix);
  CHECK(mix.starts_with("--"));
  CHECK(std::count(mix.begin(), mix.end(), '-') >= 4);
  CHECK(mix.find(" needs ") != std::string::npos);
  CHECK(remedy(1000).starts_with(
      "no pp, tp or shared decoding and no mix of degrees on 4 actors is enough; more"));
}

TEST_CASE("degrees are picked for the smallest actor, and where none suit it for the larger ones") {
  wire::ImageRequest request;
  request.prompts = {"x"};
  const auto& model = test::sample_model();
  const auto machine = plan::machine_here(DeviceKind::cpu, 3, 4);
  const auto whole = plan::make_plan(model, request, {}).memory[0].peak();
  const auto of_limits = [&](const Numbers& limits) {
    std::vector<std::pair<cluster::ActorId, std::uint64_t>> actors;
    jobs::Roominess room;
    for (std::size_t i = 0; i < limits.size(); ++i) {
      actors.emplace_back(static_cast<cluster::ActorId>(i), limits[i]);
      room.steps.emplace_back(limits[i], static_cast<int>(limits.size() - i));
    }
    room.fits = [&, actors](const plan::Plan& plan) {
      return cluster::by_memory(cluster::needs_of(plan), actors).has_value();
    };
    const auto found =
        jobs::automatic_within(model, request, static_cast<int>(limits.size()), machine, room);
    return std::pair(plan::make_plan(model, request, found), room);
  };
  const auto [alone, one] = of_limits({whole / 20, whole});
  CHECK(alone.degrees.world() == 1);
  CHECK(one.fits(alone));
  const auto [two, three] = of_limits({whole / 20, whole, whole + whole / 4});
  CHECK(two.degrees.world() <= 2);
  CHECK(three.fits(two));
  // Nothing fits: what comes nearest, for the refusal.
  const auto [none, small] = of_limits({1000, 2000});
  CHECK_FALSE(small.fits(none));
  CHECK(none.degrees.world() == 2);
}
