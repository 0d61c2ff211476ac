#include "controller/mesh/mesh.h"

#include <rapidcheck.h>
#include <algorithm>
#include <numeric>

#include "tests/support/doctest.h"

using namespace troupe::mesh;
using Groups = std::vector<std::vector<int>>;

TEST_CASE("the 16 ranks of the hybrid example") {
  const Mesh mesh({.dp = 2, .cfg = 2, .pp = 2, .ulysses = 2});
  CHECK(mesh.world() == 16);
  CHECK(mesh.groups(Axis::sp) ==
        Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}});
  CHECK(mesh.groups(Axis::pp) ==
        Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}});
  CHECK(mesh.groups(Axis::cfg) ==
        Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}, {8, 12}, {9, 13}, {10, 14}, {11, 15}});
  CHECK(mesh.groups(Axis::dp) ==
        Groups{{0, 8}, {1, 9}, {2, 10}, {3, 11}, {4, 12}, {5, 13}, {6, 14}, {7, 15}});
  CHECK(mesh.coordinates(13) == Coordinates{.dp = 1, .cfg = 1, .pp = 0, .ulysses = 1});
}

TEST_CASE("sequence groups are ring outside, ulysses inside") {
  const Mesh mesh({.ring = 3, .ulysses = 2, .tp = 2});
  CHECK(mesh.group_of(Axis::ulysses, 0) == std::vector<int>{0, 2});
  CHECK(mesh.group_of(Axis::ring, 0) == std::vector<int>{0, 4, 8});
  CHECK(mesh.group_of(Axis::sp, 1) == std::vector<int>{1, 3, 5, 7, 9, 11});
}

TEST_CASE("heads are ulysses and tp at one ring rank, a stage is ring, ulysses and tp") {
  const Mesh mesh({.cfg = 2, .pp = 2, .ring = 2, .ulysses = 3, .tp = 2});
  CHECK(mesh.group_of(Axis::heads, 8) == std::vector<int>{6, 7, 8, 9, 10, 11});
  CHECK(mesh.group_of(Axis::stage, 8) == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  CHECK(mesh.group_of(Axis::stage, 30).front() == 24);
  CHECK(mesh.groups(Axis::heads).size() == 8);
  CHECK(mesh.groups(Axis::stage).size() == 4);
  CHECK(to_string(Axis::heads) == std::string("heads"));
  CHECK(to_string(Axis::stage) == std::string("stage"));
}

TEST_CASE("any mesh: ranks and coordinates agree, and every axis partitions the world") {
  const auto degree = [](int most) { return *rc::gen::inRange(1, most + 1); };
  CHECK(rc::check([&] {
    const Mesh mesh({.dp = degree(3),
                     .cfg = degree(2),
                     .pp = degree(5),
                     .ring = degree(3),
                     .ulysses = degree(3),
                     .tp = degree(3)});
    for (int rank = 0; rank < mesh.world(); ++rank)
      RC_ASSERT(mesh.rank(mesh.coordinates(rank)) == rank);
    for (const auto axis : {Axis::tp, Axis::ulysses, Axis::ring, Axis::sp, Axis::pp, Axis::cfg,
                            Axis::dp, Axis::heads, Axis::stage}) {
      std::vector<int> seen;
      for (const auto& group : mesh.groups(axis)) {
        RC_ASSERT(std::is_sorted(group.begin(), group.end()));
        for (const int rank : group)
          RC_ASSERT(mesh.group_of(axis, rank) == group);
        seen.insert(seen.end(), group.begin(), group.end());
      }
      std::sort(seen.begin(), seen.end());
      std::vector<int> all(mesh.world());
      std::iota(all.begin(), all.end(), 0);
      RC_ASSERT(seen == all);
    }
  }));
}

TEST_CASE("impossible degrees are refused by name") {
  CHECK_THROWS_WITH(Mesh({.pp = 0}), "[mesh] pp is 0: a degree is at least 1");
  CHECK_THROWS_WITH(Mesh({.cfg = 3}),
                    "[mesh] cfg is 3: guidance has two branches, so cfg is 1 or 2");
  CHECK_THROWS_WITH(Mesh({.dp = 2}).coordinates(2), "[mesh] rank 2 is outside a world of 2");
}
