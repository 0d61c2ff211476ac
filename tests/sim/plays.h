#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/sim/faults.h"

namespace troupe::sim {

/// A kind of play: what may go wrong in it, on how many actors and to how many jobs.
struct Play {
  std::string name;
  Faults faults;
  int actors = 6;
  int jobs = 3;
};

/// Returns all plays. Users' actors have a world of their own (tests/controller/user_world.h).
const std::vector<Play>& plays();
/// Returns the play of that name. Throws std::invalid_argument naming it.
const Play& play_of(const std::string& name);

/// Sums over some seeds.
struct Totals {
  std::uint64_t seeds = 0, jobs = 0, succeeded = 0, deaths = 0, recoveries = 0, meshes = 0;
  std::uint64_t most_residents = 0, loads = 0, short_of_memory = 0, given_up = 0;
  std::uint64_t owed = 0, broken_off = 0, restarts = 0;
  std::uint64_t batched = 0, retried = 0;
  std::uint64_t met = 0;
  std::uint64_t duplicates = 0, gaps = 0, strangers = 0, echoes = 0, ghosts = 0;
};

/// Plays one seed and adds to the totals. Throws Violation with the trace and how to see it again.
void play_seed(const Play& play, std::uint64_t seed, Totals& totals);

}  // namespace troupe::sim
