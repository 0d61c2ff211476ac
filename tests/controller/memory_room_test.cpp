#include "controller/deployments/memory_room.h"

#include <rapidcheck.h>

#include <algorithm>

#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using cluster::Evictions;
using cluster::MemoryNeed;
using cluster::Room;
using Numbers = std::vector<std::uint64_t>;

namespace {

cluster::Resident kept(std::uint64_t id, std::uint64_t weights, double last_used,
                       bool in_use = false, std::uint64_t working = 0) {
  return {.deployment = id,
          .weights = weights,
          .working = working,
          .last_used = last_used,
          .in_use = in_use};
}

Room room(std::uint64_t limit, std::uint64_t wanted, std::vector<cluster::Resident> residents) {
  return {.actor = 0,
          .limit = limit,
          .wanted = wanted,
          .newcomer = true,
          .residents = std::move(residents)};
}

/// Deployments that go as a whole; of encoders alone nothing goes.
std::optional<Numbers> unloaded(const std::vector<Room>& rooms, std::uint64_t keep = 0) {
  const auto gone = cluster::evictions(rooms, keep);
  if (!gone) return std::nullopt;
  CHECK(gone->encoders.empty());
  return gone->deployments;
}

cluster::Resident with_encoders(cluster::Resident resident, std::uint64_t bytes) {
  resident.encoders = bytes;
  return resident;
}

/// A few deployments on a few actors, some of them in use, and something that wants in.
std::vector<Room> random_rooms() {
  const auto pick = [](int from, int to) { return *rc::gen::inRange(from, to); };
  std::vector<Room> rooms(static_cast<std::size_t>(pick(1, 5)));
  const int deployments = pick(0, 7);
  for (auto& one : rooms) {
    one.actor = static_cast<cluster::ActorId>(&one - rooms.data());
    one.limit = pick(0, 4) == 0 ? cluster::kNoLimit : static_cast<std::uint64_t>(pick(0, 100));
    one.wanted = static_cast<std::uint64_t>(pick(0, 60));
    one.newcomer = pick(0, 2) == 0;
  }
  for (int id = 1; id <= deployments; ++id) {
    const bool in_use = pick(0, 3) == 0;
    const double last_used = pick(0, 5);
    for (auto& one : rooms) {
      if (pick(0, 2) == 0) continue;
      one.residents.push_back(kept(static_cast<std::uint64_t>(id),
                                   static_cast<std::uint64_t>(pick(0, 40)), last_used, in_use,
                                   in_use ? static_cast<std::uint64_t>(pick(0, 20)) : 0));
      if (pick(0, 2) == 0) one.residents.back().encoders = static_cast<std::uint64_t>(pick(0, 20));
    }
  }
  return rooms;
}

bool fits(const Room& room) {
  const bool few = !room.newcomer || room.residents.size() < cluster::kMostResidents;
  return few && room.held() + room.wanted <= room.limit;
}

bool contains(const Numbers& numbers, std::uint64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

std::vector<Room> without(std::vector<Room> rooms, const Evictions& gone) {
  for (auto& one : rooms) {
    std::erase_if(one.residents, [&](const auto& resident) {
      return contains(gone.deployments, resident.deployment);
    });
    for (auto& resident : one.residents) {
      const Evictions::Encoders own{one.actor, resident.deployment};
      if (std::ranges::find(gone.encoders, own) != gone.encoders.end()) resident.encoders = 0;
    }
  }
  return rooms;
}

/// Gives up all text encoders that can be.
std::vector<Room> bare(std::vector<Room> rooms) {
  for (auto& one : rooms)
    for (auto& resident : one.residents)
      resident.encoders = 0;
  return rooms;
}

bool all_fit(const std::vector<Room>& rooms) {
  return std::all_of(rooms.begin(), rooms.end(), fits);
}

}  // namespace

TEST_CASE("what nobody uses goes, least recently used first, until the newcomer fits") {
  const auto three = [](std::uint64_t wanted) {
    return std::vector{room(10, wanted, {kept(1, 3, 20), kept(2, 3, 10), kept(3, 3, 30)})};
  };
  CHECK(unloaded(three(1)) == Numbers{});
  CHECK(unloaded(three(2)) == Numbers{2});
  CHECK(unloaded(three(5)) == Numbers{2, 1});
  CHECK(unloaded(three(10)) == Numbers{2, 1, 3});
  CHECK(unloaded(three(11)) == std::nullopt);
  CHECK(unloaded(three(10), /*keep=*/3) == std::nullopt);
}

TEST_CASE("what is in use stays, and an actor with room loses nothing") {
  CHECK(unloaded({room(10, 5, {kept(1, 3, 1, /*in_use=*/true, 4), kept(2, 2, 2)})}) ==
        std::nullopt);
  CHECK(unloaded({room(10, 3, {kept(1, 3, 1, /*in_use=*/true, 4), kept(2, 2, 2)})}) == Numbers{2});
  // Deployment 1 is older, but not where room is lacking.
  CHECK(unloaded({room(100, 5, {kept(1, 3, 1)}), room(10, 5, {kept(2, 6, 2)})}) == Numbers{2});
  CHECK(unloaded({room(cluster::kNoLimit, ~0ull, {kept(1, 3, 1)})}) == Numbers{});
  CHECK(unloaded({room(0, 1, {kept(1, 0, 1)})}) == std::nullopt);
}

TEST_CASE("an actor keeps a bounded number of deployments, however small") {
  std::vector<cluster::Resident> small;
  for (std::uint64_t id = 1; id <= cluster::kMostResidents; ++id)
    small.push_back(kept(id, 0, static_cast<double>(id)));
  CHECK(unloaded({room(0, 0, small)}) == Numbers{1});
  auto joins = room(0, 0, small);
  joins.newcomer = false;
  CHECK(unloaded({joins}) == Numbers{});
}

TEST_CASE("text encoders go first, of what is in use last, and only where memory lacks") {
  const auto one = [](std::uint64_t wanted) {
    return std::vector{room(20, wanted,
                            {with_encoders(kept(1, 3, 20), 2), with_encoders(kept(2, 3, 10), 2),
                             with_encoders(kept(3, 3, 5, /*in_use=*/true), 2)})};
  };
  const auto encoders = [&](std::uint64_t wanted) {
    Numbers numbers;
    const auto gone = cluster::evictions(one(wanted), 3).value();
    for (const auto& encoders : gone.encoders)
      numbers.push_back(encoders.deployment);
    return numbers;
  };
  const auto deployments = [&](std::uint64_t wanted) {
    return cluster::evictions(one(wanted), 3).value().deployments;
  };
  CHECK(encoders(5) == Numbers{});
  CHECK(encoders(6) == Numbers{2});
  CHECK(encoders(8) == Numbers{2, 1});
  CHECK(encoders(11) == Numbers{2, 1, 3});
  CHECK(deployments(11) == Numbers{});
  // What an unloading makes room for stays.
  CHECK(deployments(12) == Numbers{2});
  CHECK(encoders(12) == Numbers{1});
  CHECK(cluster::evictions(one(18), 3) == std::nullopt);
  // Too many residents are no lack of memory.
  std::vector<cluster::Resident> small;
  for (std::uint64_t id = 1; id <= cluster::kMostResidents; ++id)
    small.push_back(with_encoders(kept(id, 0, static_cast<double>(id)), 1));
  const auto gone = cluster::evictions({room(100, 0, small)}).value();
  CHECK(gone.encoders.empty());
  CHECK(gone.deployments == Numbers{1});
}

TEST_CASE("whatever is evicted: it fits then, it was needed, and nothing in use is touched") {
  CHECK(rc::check([] {
    const auto rooms = random_rooms();
    const auto gone = cluster::evictions(rooms);
    Numbers idle, used;
    for (const auto& one : rooms) {
      for (const auto& resident : one.residents)
        (resident.in_use ? used : idle).push_back(resident.deployment);
    }
    if (!gone) {
      RC_ASSERT(!all_fit(without(bare(rooms), {{}, idle})));
      return;
    }
    RC_ASSERT(all_fit(without(rooms, *gone)));
    for (const auto id : gone->deployments)
      RC_ASSERT(!contains(used, id));
    for (const auto& encoders : gone->encoders)
      RC_ASSERT(!contains(gone->deployments, encoders.deployment));
    if (!gone->encoders.empty()) {
      auto one_less = *gone;
      one_less.encoders.pop_back();
      RC_ASSERT(!all_fit(without(rooms, one_less)));
    }
    if (!gone->deployments.empty()) {
      auto one_less = *gone;
      one_less.deployments.pop_back();
      RC_ASSERT(!all_fit(without(bare(rooms), one_less)));
    }
  }));
}

TEST_CASE("by memory the neediest rank gets the largest actor, and a shortage names both") {
  const std::vector<MemoryNeed> needs{{2, 1}, {5, 2}, {1, 1}};
  CHECK(cluster::by_memory(needs, {{7, 3}, {8, 2}, {9, 7}}) ==
        std::vector<cluster::ActorId>{7, 9, 8});
  CHECK(cluster::by_memory(needs, {{7, 3}, {8, 2}, {9, cluster::kNoLimit}}) ==
        std::vector<cluster::ActorId>{7, 9, 8});
  std::optional<cluster::Shortage> why;
  CHECK(cluster::by_memory({{2, 1}}, {{7, 0}}, &why) == std::nullopt);
  REQUIRE(why);
  CHECK(why->limit == 0);
  CHECK(cluster::by_memory(needs, {{7, 3}, {8, 6}, {9, 6}}, &why) == std::nullopt);
  REQUIRE(why);
  CHECK(why->rank == 1);
  CHECK(why->needs == 7);
  CHECK(why->limit == 6);
  why.reset();
  CHECK(cluster::by_memory(needs, {{7, 30}, {8, 30}}, &why) == std::nullopt);
  CHECK_FALSE(why);  // too few is something else
}

TEST_CASE("a decoder stays where it was used: its weights are kept, what decoding takes is not") {
  wire::ImageRequest request;
  request.prompts = {"x"};
  const auto plan = plan::make_plan(test::sample_model(), request, {.pp = 2});
  const auto needs = cluster::needs_of(plan);
  const auto decodes = static_cast<std::size_t>(plan.decode_rank(0));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const auto& own = plan.memory[rank];
    CHECK(needs[rank].total() == own.peak());
    CHECK((own.decoder > 0) == (rank == decodes));
    CHECK(needs[rank].weights == own.weights + own.decoder);
    CHECK(needs[rank].encoders == own.encoders);
    CHECK((own.encoders > 0) == (rank == static_cast<std::size_t>(plan.text_rank(0))));
    CHECK(own.vae >= own.decoder);
  }
}

TEST_CASE("as many parts as can be are placed, and all of them where by memory finds a way") {
  CHECK(cluster::most_placed({9, 1}, {1, 9}) == 2);
  CHECK(cluster::most_placed({9, 1}, {8, 2}) == 1);
  CHECK(cluster::most_placed({9, 1}, {cluster::kNoLimit}) == 1);
  CHECK(cluster::most_placed({9, 1}, {0}) == 0);
  CHECK(cluster::most_placed({}, {5}) == 0);
  CHECK(rc::check([] {
    const auto some = [] {
      Numbers numbers(static_cast<std::size_t>(*rc::gen::inRange(0, 6)));
      for (auto& one : numbers)
        one = static_cast<std::uint64_t>(*rc::gen::inRange(0, 9));
      return numbers;
    };
    auto needs = some();
    const auto limits = some();
    const auto placed = cluster::most_placed(needs, limits);
    std::vector<std::pair<cluster::ActorId, std::uint64_t>> actors;
    for (const auto limit : limits)
      actors.emplace_back(static_cast<cluster::ActorId>(actors.size()), limit);
    // The smallest so many find a way, one more does not.
    std::sort(needs.begin(), needs.end());
    const auto way = [&](std::size_t count) {
      std::vector<MemoryNeed> first(count);
      for (std::size_t i = 0; i < count; ++i)
        first[i].weights = needs[i];
      return cluster::by_memory(first, actors).has_value();
    };
    RC_ASSERT(placed <= needs.size());
    RC_ASSERT(way(placed));
    if (placed < needs.size()) RC_ASSERT(!way(placed + 1));
  }));
}

TEST_CASE("by memory finds a way exactly when there is one") {
  CHECK(rc::check([] {
    const auto count = static_cast<std::size_t>(*rc::gen::inRange(1, 5));
    std::vector<MemoryNeed> needs(count);
    for (auto& need : needs)
      need.weights = static_cast<std::uint64_t>(*rc::gen::inRange(1, 9));
    std::vector<std::pair<cluster::ActorId, std::uint64_t>> limits(
        count + static_cast<std::size_t>(*rc::gen::inRange(0, 2)));
    for (std::size_t i = 0; i < limits.size(); ++i)
      limits[i] = {static_cast<cluster::ActorId>(i),
                   static_cast<std::uint64_t>(*rc::gen::inRange(1, 9))};
    std::vector<std::size_t> order(limits.size());
    for (std::size_t i = 0; i < order.size(); ++i)
      order[i] = i;
    bool possible = false;
    do {
      bool all = true;
      for (std::size_t rank = 0; rank < count; ++rank)
        all = all && needs[rank].total() <= limits[order[rank]].second;
      possible = possible || all;
    } while (std::next_permutation(order.begin(), order.end()));
    const auto found = cluster::by_memory(needs, limits);
    RC_ASSERT(found.has_value() == possible);
    for (std::size_t rank = 0; found && rank < count; ++rank)
      RC_ASSERT(needs[rank].total() <= limits[(*found)[rank]].second);
  }));
}
