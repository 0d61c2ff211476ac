#include <rapidcheck.h>
#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "controller/plan/plan.h"
#include "tests/controller/planning.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::GroupPlan;
using plan::make_plan;
using plan::Plan;
using plan::Stage;
using test::sample_model;
using test::square_request;
using Role = GroupPlan::Role;

namespace {

int up_to(int most) {
  return *rc::gen::inRange(1, most + 1);
}

wire::Parallelism any_degrees() {
  wire::Parallelism degrees{.dp = up_to(2),
                            .cfg = up_to(2),
                            .pp = up_to(3),
                            .ulysses = up_to(3),
                            .ring = up_to(3),
                            .tp = up_to(3)};
  degrees.vae =
      up_to(std::min(32, degrees.cfg * degrees.pp * degrees.ulysses * degrees.ring * degrees.tp));
  return degrees;
}

wire::ImageRequest any_request() {
  const auto method = *rc::gen::element<std::string>("exact", "pipefusion", "distrifusion");
  auto request = square_request(method, method == "exact" ? 1 : up_to(16), *rc::gen::inRange(0, 3));
  if (method != "exact") request.kv = *rc::gen::element<std::string>("stale", "predict");
  request.images_per_prompt = *rc::gen::inRange(2, 5);
  return request;
}

std::string why(const wire::ImageRequest& request, const wire::Parallelism& parallelism) {
  try {
    make_plan(sample_model(), request, parallelism);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<std::vector<int>> of_role(const Plan& plan, Role role) {
  std::vector<std::vector<int>> all;
  for (const auto& group : plan.groups) {
    if (group.role == role) all.push_back(group.ranks);
  }
  return all;
}

std::vector<std::vector<int>> larger_than_one(std::vector<std::vector<int>> groups) {
  std::erase_if(groups, [](const auto& ranks) { return ranks.size() < 2; });
  return groups;
}

int size_of(const wire::RowRange& run) {
  return run.end - run.begin;
}

/// Edges and the like join ranks that differ on one axis only.
bool differ_only(const mesh::Mesh& mesh, const std::vector<int>& ranks,
                 int mesh::Coordinates::*axis, const std::vector<int>& at) {
  auto place = mesh.coordinates(ranks.front());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    place.*axis = at[i];
    if (mesh.rank(place) != ranks[i]) return false;
  }
  return ranks.size() == at.size();
}

}  // namespace

TEST_CASE("the micro-steps of a step cover each token row once, evenly, remainders first") {
  CHECK(rc::check([] {
    const auto request = any_request();
    const auto parallelism = any_degrees();
    const auto plan = make_plan(sample_model(), request, parallelism);
    const int ring = parallelism.ring, ulysses = parallelism.ulysses;
    const bool waves = request.method == "distrifusion";
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
  const auto plan =
      make_plan(sample_model(), square_request("distrifusion", 5, 1), {.ulysses = 2, .ring = 2});
  REQUIRE(plan.micro_steps.size() == 3);
  using Runs = std::vector<wire::RowRange>;
  CHECK(plan.micro_steps[0].of_rank == Runs{{0, 2}, {2, 4}, {4, 6}, {6, 7}});
  CHECK(plan.micro_steps[1].of_rank == Runs{{7, 9}, {9, 10}, {10, 12}, {12, 13}});
  CHECK(plan.micro_steps[2].of_rank == Runs{{13, 15}, {15, 16}, {0, 0}, {0, 0}});
  CHECK(make_plan(sample_model(), square_request("pipefusion", 5, 1), {.ulysses = 2, .ring = 2})
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

TEST_CASE("groups of any mix join who differs on their axis alone") {
  CHECK(rc::check([] {
    const auto request = any_request();
    const auto parallelism = any_degrees();
    const auto plan = make_plan(sample_model(), request, parallelism);
    const mesh::Mesh mesh(plan.degrees);
    const auto& degrees = plan.degrees;
    const std::size_t line = degrees.sp() * degrees.tp;
    std::set<std::string> names;
    std::set<std::vector<int>> pairs;
    for (std::size_t i = 0; i < plan.groups.size(); ++i) {
      const auto& group = plan.groups[i];
      RC_ASSERT(group.id == i + 1);
      RC_ASSERT(names.insert(group.name).second);
      RC_ASSERT(group.ranks.size() > 1);
      RC_ASSERT(std::set(group.ranks.begin(), group.ranks.end()).size() == group.ranks.size());
      const auto at = mesh.coordinates(group.ranks[0]);
      if (group.role == Role::edge) {
        RC_ASSERT(differ_only(mesh, group.ranks, &mesh::Coordinates::pp, {at.pp, at.pp + 1}));
      } else if (group.role == Role::feedback) {
        RC_ASSERT(differ_only(mesh, group.ranks, &mesh::Coordinates::pp, {degrees.pp - 1, 0}));
      } else if (group.role == Role::cfg) {
        RC_ASSERT(at.pp == degrees.pp - 1);
        RC_ASSERT(differ_only(mesh, group.ranks, &mesh::Coordinates::cfg, {0, 1}));
      }
    }
    const std::size_t lines = degrees.dp * degrees.cfg * line;
    RC_ASSERT(of_role(plan, Role::edge).size() == lines * (degrees.pp - 1));
    RC_ASSERT(of_role(plan, Role::feedback).size() == (degrees.pp > 1 ? lines : 0));
    RC_ASSERT(of_role(plan, Role::cfg).size() == (degrees.cfg > 1 ? degrees.dp * line : 0));
    const auto expect = [&](Role role, mesh::Axis axis) {
      const auto all = larger_than_one(mesh.groups(axis));
      RC_ASSERT(of_role(plan, role) == all);
    };
    expect(Role::ulysses, mesh::Axis::ulysses);
    expect(Role::ring, mesh::Axis::ring);
    expect(Role::tp, mesh::Axis::tp);
    expect(Role::heads, mesh::Axis::heads);
    expect(Role::stage, mesh::Axis::stage);
  }));
}

TEST_CASE("who decodes: holders of latents first, all of one replica; rows come to them") {
  CHECK(rc::check([] {
    const auto parallelism = any_degrees();
    const auto plan = make_plan(sample_model(), any_request(), parallelism);
    const mesh::Mesh mesh(plan.degrees);
    const int replica = plan.degrees.world() / plan.degrees.dp;
    std::vector<std::vector<int>> vae, rows;
    for (int dp = 0; dp < plan.degrees.dp; ++dp) {
      const auto decoders = plan.decoders(dp);
      const auto holders = plan.latent_holders(dp);
      RC_ASSERT(static_cast<int>(decoders.size()) == parallelism.vae);
      RC_ASSERT(decoders.front() == plan.decode_rank(dp));
      RC_ASSERT(std::set(decoders.begin(), decoders.end()).size() == decoders.size());
      for (const int rank : decoders)
        RC_ASSERT(rank / replica == dp);
      RC_ASSERT(static_cast<int>(holders.size()) == plan.degrees.sp());
      for (std::size_t sp = 0; sp < holders.size(); ++sp) {
        const auto at = mesh.coordinates(holders[sp]);
        RC_ASSERT(at.dp == dp && at.cfg == 0 && at.tp == 0);
        RC_ASSERT(at.pp == plan.degrees.pp - 1);
        RC_ASSERT(at.ring * plan.degrees.ulysses + at.ulysses == static_cast<int>(sp));
        if (sp < decoders.size()) RC_ASSERT(decoders[sp] == holders[sp]);
      }
      vae.push_back(decoders);
      auto members = decoders;
      for (const int holder : holders) {
        if (std::find(members.begin(), members.end(), holder) == members.end())
          members.push_back(holder);
      }
      rows.push_back(members);
    }
    RC_ASSERT(of_role(plan, Role::vae) == larger_than_one(vae));
    RC_ASSERT(of_role(plan, Role::rows) == larger_than_one(rows));
  }));
}

TEST_CASE("the groups of one mix: cfg 2, pp 2, ring 2, tp 2") {
  auto request = square_request("pipefusion", 4, 1);
  request.kv = "predict";
  const auto plan =
      make_plan(sample_model(), request, {.cfg = 2, .pp = 2, .ring = 2, .tp = 2, .vae = 3});
  CHECK(plan.group_with(Role::edge, 10, 0)->ranks == std::vector<int>{10, 14});
  CHECK(plan.group_with(Role::feedback, 5, 0)->ranks == std::vector<int>{5, 1});
  CHECK(plan.group_with(Role::cfg, 6, 0)->ranks == std::vector<int>{6, 14});
  CHECK(plan.group_with(Role::cfg, 2, -1) == nullptr);
  CHECK(plan.group_with(Role::ring, 5, 0)->ranks == std::vector<int>{5, 7});
  CHECK(plan.group_with(Role::tp, 7, -1)->ranks == std::vector<int>{6, 7});
  CHECK(plan.group_with(Role::heads, 7, -1)->ranks == std::vector<int>{6, 7});
  CHECK(plan.group_with(Role::stage, 9, -1)->ranks == std::vector<int>{8, 9, 10, 11});
  CHECK(plan.latent_holders(0) == std::vector<int>{4, 6});
  CHECK(plan.decoders(0) == std::vector<int>{4, 6, 15});
  CHECK(plan.group_with(Role::vae, 4, 0)->name == "vae 4,6,15");
}

TEST_CASE("stages may be listed, and lists that do not add up are refused") {
  const auto request = square_request();
  CHECK(make_plan(sample_model(), request, {.pp = 3, .stages = {1, 5, 2}}).stages ==
        std::vector<Stage>{{0, 1}, {1, 6}, {6, 8}});
  CHECK(make_plan(sample_model(), request, {.stages = {8}}).stages == std::vector<Stage>{{0, 8}});
  CHECK(why(request, {.pp = 2, .stages = {8}}) == "[plan] stages lists 1 size, but pp is 2");
  CHECK(why(request, {.stages = {4, 4}}) == "[plan] stages lists 2 sizes, but pp is 1");
  CHECK(why(request, {.pp = 2, .stages = {4, 3}}) ==
        "[plan] stages add up to 7 blocks, but the transformer has 8");
  CHECK(why(request, {.pp = 2, .stages = {4, 5}}).starts_with("[plan] stages add up to 9"));
  CHECK(why(request, {.pp = 2, .stages = {8, 0}}) ==
        "[plan] stages has a stage of 0 blocks: the transformer has 8");
  CHECK(why(request, {.pp = 3, .stages = {8, -1, 1}}).starts_with("[plan] stages has a stage of"));
}

TEST_CASE("parallel decoding and predicted K,V are refused where there is no such thing") {
  auto request = square_request();
  CHECK(why(request, {.cfg = 2, .vae = 2}) == "accepted");
  CHECK(why(request, {.vae = 2}) ==
        "[plan] vae-parallel is 2, but a replica of this mesh has 1 actor");
  CHECK(why(request, {.cfg = 2, .vae = 0}).starts_with("[plan] vae-parallel is 0"));
  request.images_per_prompt = 2;
  CHECK(why(request, {.dp = 2, .pp = 2, .vae = 3}) ==
        "[plan] vae-parallel is 3, but a replica of this mesh has 2 actors");
  request.height = 16;  // 2 rows of latents, one of tokens
  CHECK(why(request, {.ulysses = 3, .vae = 3}) ==
        "[plan] vae-parallel is 3, but the latents have only 2 rows to split");
  CHECK(why(request, {.ulysses = 3, .vae = 2}) == "accepted");
  request = square_request();
  request.kv = "predict";
  CHECK(why(request, {}).starts_with("[plan] kv is predict with method exact"));
  request.kv = "guess";
  CHECK(why(request, {}) == "[plan] kv is \"guess\": stale or predict");
  for (const auto method : {"pipefusion", "distrifusion"}) {
    request = square_request(method, 2, 1);
    request.kv = "predict";
    CHECK(why(request, {.ulysses = 5}) == "accepted");  // more ranks than heads
    CHECK(why(request, {.tp = 7}) == "accepted");
  }
  CHECK(why(square_request(), {.ring = 0}) == "[mesh] ring is 0: a degree is at least 1");
}

TEST_CASE("names of groups differ and fit the tensor plane, whatever the number of ranks") {
  auto request = square_request("exact", 1, 0);
  request.images_per_prompt = 2;
  for (const int ulysses : {1, 32, 33, 128}) {
    const auto plan =
        make_plan(sample_model(), request, {.dp = 2, .cfg = 2, .pp = 2, .ulysses = ulysses});
    std::set<std::string> names;
    for (const auto& group : plan.groups) {
      INFO(group.name);
      CHECK(names.insert(group.name).second);
      CHECK(group.name.size() < 200);  // of 255, the epoch's number comes behind it
    }
  }
}
