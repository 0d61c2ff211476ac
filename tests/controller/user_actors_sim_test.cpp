// Users' actors on hosts that come, go and are drained, processes that die and clients that leave,
// with an own clock and no process: what must hold whatever happens. More seeds: scripts/sim.
#include <memory>

#include "tests/controller/user_world.h"
#include "tests/support/doctest.h"

namespace troupe::user {
namespace {

/// Plays. False, with a trace, when something was seen that must not be.
bool plays(UserWorld& world, std::uint64_t seed) {
  try {
    world.play();
    return true;
  } catch (const std::exception& error) {
    FAIL_CHECK(world.trace(200) << "seed " << seed << ": " << std::string(error.what())
                                << "\nonce more: scripts/sim --play users --seed " << seed);
    return false;
  }
}

}  // namespace

TEST_CASE("user actors: 1,000 seeds of hosts, processes and clients that come and go") {
  std::size_t lost = 0, moved = 0, refused = 0, answered = 0, repeated = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    auto world = std::make_unique<UserWorld>(seed);
    if (!plays(*world, seed)) return;
    lost += world->lost_hosts;
    moved += world->moved;
    refused += world->refused;
    answered += world->answered;
    repeated += world->repeated;
  }
  // It was no empty play.
  CHECK(lost > 1000);
  CHECK(moved > 1000);
  CHECK(refused > 1000);
  CHECK(answered > 20'000);
  CHECK(repeated > 5000);
}

TEST_CASE("user actors: the same where next to none of the dead are remembered, and at a stop") {
  for (std::uint64_t seed = 2001; seed <= 2200; ++seed) {
    auto world = std::make_unique<UserWorld>(seed, seed % 3);
    world->stops = seed % 2 == 0;
    if (!plays(*world, seed)) return;
  }
}

}  // namespace troupe::user
