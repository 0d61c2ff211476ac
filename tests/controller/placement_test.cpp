// Which rank of a mesh lies on which host, hosts of unequal size among them.
#include "controller/mesh/placement.h"

#include <rapidcheck.h>
#include <algorithm>
#include <numeric>
#include <set>

#include "controller/deployments/deployments.h"
#include "tests/controller/idle_environment.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using mesh::place_on_hosts;
using Hosts = std::vector<int>;

namespace {

/// Idle actors on hosts of so many each, and whom a job of these degrees gets, by rank.
std::vector<cluster::ActorId> chosen(const std::vector<std::pair<std::string, int>>& hosts,
                                     const wire::Parallelism& degrees) {
  cluster::Members members("secret");
  for (const auto& [host, count] : hosts) {
    for (int i = 0; i < count; ++i)
      test::add_idle(members, host);
  }
  test::IdleEnvironment environment;
  const cluster::Deployments deployments(environment, members);
  wire::ImageRequest request;
  request.prompts = {"x", "y"};
  const auto plan = plan::make_plan(test::sample_model(), request, degrees);
  return deployments.choose_actors(plan, cluster::Deployments::Beside::evict_idle).value();
}

}  // namespace

TEST_CASE("tp and sequence groups lie inside a host, stages, branches and replicas across") {
  // Two hosts of 8: the 16 ranks of the hybrid example, a replica each.
  const auto hybrid = place_on_hosts({.dp = 2, .cfg = 2, .pp = 2, .ulysses = 2}, {8, 8});
  CHECK(std::count(hybrid.begin(), hybrid.begin() + 8, 0) == 8);
  CHECK(std::count(hybrid.begin() + 8, hybrid.end(), 1) == 8);
  // One host would do: the smallest such.
  CHECK(place_on_hosts({.pp = 2, .tp = 2}, {8, 4, 6}) == Hosts{1, 1, 1, 1});
  // Uneven: an actor stays idle rather than that a pair is torn.
  CHECK(place_on_hosts({.pp = 2, .tp = 2}, {3, 2}) == Hosts{0, 0, 1, 1});
  CHECK(place_on_hosts({.pp = 2, .ulysses = 2}, {2, 3}) == Hosts{1, 1, 0, 0});
  CHECK(place_on_hosts({.pp = 3, .ring = 3}, {5, 4, 3}) == Hosts{0, 0, 0, 1, 1, 1, 2, 2, 2});
  // Branches and replicas, too, where they can be whole.
  CHECK(place_on_hosts({.cfg = 2, .pp = 3}, {5, 3}) == Hosts{0, 0, 0, 1, 1, 1});
  CHECK(place_on_hosts({.dp = 3, .pp = 2}, {3, 3, 2}) == Hosts{0, 0, 1, 1, 2, 2});
  // Not everything can be: then as much as can, and what is torn are stages before pairs.
  CHECK(place_on_hosts({.pp = 3, .tp = 2}, {3, 3}) == Hosts{0, 0, 1, 1, 1, 0});
  CHECK(place_on_hosts({.ring = 2, .ulysses = 3}, {4, 3}) == Hosts{0, 0, 0, 1, 1, 1});
  CHECK(place_on_hosts({.ring = 2, .tp = 2}, {3, 1}) == Hosts{0, 0, 0, 1});
  // As few hosts as it takes, the rest where it fits best.
  CHECK(place_on_hosts({.pp = 7}, {4, 5, 2, 3}) == Hosts{1, 1, 1, 1, 1, 2, 2});
  CHECK(place_on_hosts({}, {0, 1}) == Hosts{1});
  CHECK_THROWS_WITH(place_on_hosts({.pp = 4}, {2, 1}), "[mesh] 4 ranks are too many for 3 places");
}

TEST_CASE("on any hosts as many groups of each kind are whole as there is room for") {
  const auto up_to = [](int most) { return *rc::gen::inRange(1, most + 1); };
  CHECK(rc::check([&] {
    const mesh::Degrees degrees{.dp = up_to(3),
                                .cfg = up_to(2),
                                .pp = up_to(4),
                                .ring = up_to(3),
                                .ulysses = up_to(3),
                                .tp = up_to(3)};
    const int world = degrees.world();
    auto rooms = *rc::gen::nonEmpty(rc::gen::container<Hosts>(rc::gen::inRange(0, 12)));
    const int lack = world - std::accumulate(rooms.begin(), rooms.end(), 0);
    if (lack > 0) rooms[*rc::gen::inRange<std::size_t>(0, rooms.size())] += lack;
    const auto host_of = place_on_hosts(degrees, rooms);
    RC_ASSERT(host_of.size() == static_cast<std::size_t>(world));
    for (int host = 0; host < static_cast<int>(rooms.size()); ++host)
      RC_ASSERT(std::count(host_of.begin(), host_of.end(), host) <= rooms[host]);
    const int stage = degrees.sp() * degrees.tp;
    for (const int size : {degrees.tp, degrees.ulysses * degrees.tp, stage, degrees.pp * stage,
                           degrees.cfg * degrees.pp * stage, world}) {
      int whole = 0;
      for (int first = 0; first < world; first += size)
        whole += std::set(host_of.begin() + first, host_of.begin() + first + size).size() == 1;
      int possible = 0;
      for (const int room : rooms)
        possible += room / size;
      RC_ASSERT(whole >= std::min(possible, world / size));
    }
  }));
}

TEST_CASE("a job gets the actors of its hosts in that order") {
  const std::vector<std::pair<std::string, int>> uneven = {{"here", 3}, {"far", 2}};
  using Actors = std::vector<cluster::ActorId>;
  CHECK(chosen(uneven, {.pp = 2, .tp = 2}) == Actors{0, 1, 3, 4});
  CHECK(chosen(uneven, {.cfg = 2, .ulysses = 2}) == Actors{0, 1, 3, 4});
  CHECK(chosen(uneven, {.dp = 2, .ring = 2}) == Actors{0, 1, 3, 4});
  CHECK(chosen(uneven, {.pp = 4}) == Actors{0, 1, 2, 3});
  CHECK(chosen(uneven, {.ulysses = 2}) == Actors{3, 4});
  CHECK(chosen(uneven, {.tp = 3}) == Actors{0, 1, 2});
  CHECK(chosen(uneven, {.pp = 5}) == Actors{0, 1, 2, 3, 4});
  // The same whichever was there first.
  CHECK(chosen({{"far", 2}, {"here", 3}}, {.pp = 2, .tp = 2}) == Actors{2, 3, 0, 1});
}
