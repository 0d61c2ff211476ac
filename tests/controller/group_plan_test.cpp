#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <set>

#include "controller/plan/plan.h"
#include "tests/controller/any_plan.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::GroupPlan;
using plan::make_plan;
using plan::Plan;
using Role = GroupPlan::Role;
using namespace troupe::test;

namespace {

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

TEST_CASE("stages have an edge for what they leave for those behind the next one") {
  CHECK(rc::check([] {
    const auto& model = skipping_model();
    const auto plan = make_plan(model, any_request(), any_degrees());
    const mesh::Mesh mesh(plan.degrees);
    std::size_t expected = 0;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      for (int later = mesh.coordinates(rank).pp + 2; later < plan.degrees.pp; ++later) {
        const auto& own = plan.stages[mesh.coordinates(rank).pp];
        const auto& taker = plan.stages[later];
        std::int64_t states = 0;
        for (int block = 5; block < 8; ++block) {
          const int left = 7 - block;
          states += block >= taker.first_block && block < taker.last_block &&
                    left >= own.first_block && left < own.last_block;
        }
        if (states == 0) continue;
        ++expected;
        auto there = mesh.coordinates(rank);
        there.pp = later;
        const std::vector<int> ends{rank, mesh.rank(there)};
        const auto edges = std::ranges::count_if(plan.groups, [&](const GroupPlan& group) {
          return group.role == Role::skip && group.ranks == ends &&
                 group.channels == states * model.transformer.inner_dim();
        });
        RC_ASSERT(edges == 1);
      }
    }
    RC_ASSERT(of_role(plan, Role::skip).size() == expected);
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
  auto request = square_request(Method::pipefusion, 4, 1);
  request.kv = KvUse::predict;
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

TEST_CASE("names of groups differ and fit the tensor plane, whatever the number of ranks") {
  auto request = square_request(Method::exact, 1, 0);
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
