#include "tests/sim/plays.h"

#include <algorithm>
#include <stdexcept>

#include "tests/sim/world.h"

namespace troupe::sim {
namespace {

constexpr double kDeadline = 4000;  // virtual seconds
constexpr std::size_t kTraceLines = 200;

/// Returns faults that kill, one per job for three jobs: of six places at least three stay, and any
/// job fits on one actor.
Faults killing(bool elastic) {
  return {.kills_per_job = 0.9, .late_exits = 0.3, .empty_places = true, .elastic = elastic};
}

/// Returns faults that kill: of four and two places at most three are lost.
Faults killing_kinds(bool elastic) {
  return {.kills_per_job = 0.9,
          .late_exits = 0.3,
          .hangs_per_job = 0.1,
          .empty_places = true,
          .elastic = elastic,
          .two_kinds = true};
}

Faults in_bad_memory(bool elastic) {
  return {.kills_per_job = 0.6,
          .mass_kills_per_job = 0.2,
          .late_exits = 0.5,
          .cuts_per_job = 0.3,
          .elastic = elastic,
          .tight_memory = true};
}

std::vector<Play> make_plays() {
  auto drained_kinds = killing_kinds(false);
  drained_kinds.hosts = 2;
  drained_kinds.drains_per_job = 0.6;
  drained_kinds.restarts_per_job = 0.3;
  drained_kinds.rejoin_deadline = 30;
  return {
      {"calm", {}},
      {"deaths", {.kills_per_job = 0.5, .hangs_per_job = 0.1, .stalls_per_job = 0.1}},
      {"mass-kills",
       {.kills_per_job = 0.2, .mass_kills_per_job = 0.2, .slow_loads = 0.2, .late_exits = 0.3}},
      {"links",
       {.cuts_per_job = 0.3,
        .drops_per_message = 0.001,
        .doubles_per_message = 0.02,
        .late_blobs = 0.02}},
      {"orders",
       {.doubles_per_message = 0.05,
        .reorders_per_message = 0.002,
        .late_per_message = 0.005,
        .late_blobs = 0.1}},
      {"stops",
       {.late_exits = 0.2,
        .naps_per_job = 0.5,
        .slow_per_job = 0.5,
        .late_per_message = 0.002,
        .late_blobs = 0.05}},
      {"ghosts",
       {.kills_per_job = 0.5,
        .late_exits = 0.3,
        .hangs_per_job = 0.1,
        .naps_per_job = 0.2,
        .cuts_per_job = 0.2,
        .doubles_per_message = 0.05,
        .reorders_per_message = 0.001,
        .late_per_message = 0.002,
        .ghosts = true,
        .failed_starts = 0.05,
        .failed_tasks = 0.001,
        .hosts = 2,
        .lost_hosts_per_job = 0.05}},
      {"echoes",
       {.kills_per_job = 0.3,
        .late_blobs = 0.05,
        .echoes_per_message = 0.3,
        .failed_tasks = 0.004,
        .cancels_per_job = 0.2,
        .retries_per_job = 0.5}},
      {"elastic-deaths", killing(true)},
      {"elastic-hangs", {.hangs_per_job = 0.9, .empty_places = true, .elastic = true}},
      {"rigid-deaths", killing(false)},
      {"restarts", {.retries_per_job = 0.3, .restarts_per_job = 0.7}},
      {"restarts-all",
       {.kills_per_job = 0.3,
        .hangs_per_job = 0.1,
        .naps_per_job = 0.1,
        .cuts_per_job = 0.2,
        .drops_per_message = 0.001,
        .doubles_per_message = 0.02,
        .reorders_per_message = 0.0005,
        .late_per_message = 0.001,
        .late_blobs = 0.02,
        .echoes_per_message = 0.02,
        .ghosts = true,
        .failed_spawns = 0.02,
        .failed_starts = 0.02,
        .failed_loads = 0.01,
        .failed_tasks = 0.001,
        .retries_per_job = 0.3,
        .restarts_per_job = 0.5,
        .rejoin_deadline = 30}},
      {"drains", {.hosts = 2, .drains_per_job = 0.9}},
      {"drains-all",
       {.kills_per_job = 0.4,
        .mass_kills_per_job = 0.1,
        .late_exits = 0.2,
        .hangs_per_job = 0.1,
        .ghosts = true,
        .empty_places = true,
        .elastic = true,
        .hosts = 2,
        .drains_per_job = 0.6,
        .lost_hosts_per_job = 0.2,
        .rejoin_deadline = 30}},
      {"racks",
       {.kills_per_job = 0.05,
        .elastic = true,
        .hosts = 128,
        .lost_hosts_per_job = 0.04,
        .hosts_at_once = 8,
        .wide = true},
       1024,
       128},
      {"memory", {.tight_memory = true}, 4},
      {"memory-all",
       {.kills_per_job = 0.4,
        .late_exits = 0.2,
        .hangs_per_job = 0.1,
        .slow_per_job = 0.1,
        .ghosts = true,
        .failed_loads = 0.02,
        .failed_tasks = 0.002,
        .cancels_per_job = 0.1,
        .hosts = 2,
        .drains_per_job = 0.2,
        .tight_memory = true}},
      {"memory-rigid", in_bad_memory(false)},
      {"memory-elastic", in_bad_memory(true)},
      {"kinds", {.two_kinds = true}},
      {"kinds-rigid", killing_kinds(false)},
      {"kinds-elastic", killing_kinds(true)},
      {"kinds-drained", drained_kinds},
      {"mesh-cancels", {.cancels_per_job = 0.5, .retries_per_job = 0.3, .one_mesh = true}, 4, 8},
      {"mesh-deaths",
       {.kills_per_job = 0.2,
        .late_exits = 0.2,
        .ghosts = true,
        .cancels_per_job = 0.3,
        .one_mesh = true},
       4,
       8},
      {"batches", {.batches = true}, 2, 9},
      {"batches-deaths",
       {.kills_per_job = 0.3,
        .late_exits = 0.2,
        .hangs_per_job = 0.05,
        .late_blobs = 0.02,
        .cancels_per_job = 0.2,
        .batches = true},
       3,
       9},
      {"batches-fail", {.failed_tasks = 0.01, .batches = true}, 2, 9},
      {"batches-all",
       {.late_blobs = 0.02,
        .echoes_per_message = 0.1,
        .failed_loads = 0.02,
        .failed_tasks = 0.002,
        .cancels_per_job = 0.1,
        .empty_places = true,
        .elastic = true,
        .hosts = 2,
        .drains_per_job = 0.1,
        .tight_memory = true,
        .batches = true},
       5,
       8},
      {"batches-restarts", {.kills_per_job = 0.1, .restarts_per_job = 0.3, .batches = true}, 2, 9},
      {"stops-at-nan",
       {.kills_per_job = 0.2,
        .late_exits = 0.2,
        .drops_per_message = 0.0005,
        .echoes_per_message = 0.05,
        .ghosts = true,
        .not_finite_tasks = 0.02,
        .watches_per_job = 0.6,
        .cancels_per_job = 0.2,
        .one_mesh = true},
       4,
       8},
      {"all",
       {.kills_per_job = 0.3,
        .late_exits = 0.1,
        .hangs_per_job = 0.1,
        .stalls_per_job = 0.05,
        .naps_per_job = 0.1,
        .slow_per_job = 0.1,
        .cuts_per_job = 0.2,
        .drops_per_message = 0.001,
        .doubles_per_message = 0.02,
        .reorders_per_message = 0.0005,
        .late_per_message = 0.001,
        .late_blobs = 0.02,
        .echoes_per_message = 0.02,
        .ghosts = true,
        .failed_spawns = 0.05,
        .failed_starts = 0.05,
        .failed_loads = 0.02,
        .failed_tasks = 0.002,
        .cancels_per_job = 0.2,
        .retries_per_job = 0.2}},
  };
}

}  // namespace

const std::vector<Play>& plays() {
  static const auto all = make_plays();
  return all;
}

const Play& play_of(const std::string& name) {
  const auto found = std::find_if(plays().begin(), plays().end(),
                                  [&](const Play& play) { return play.name == name; });
  if (found == plays().end()) throw std::invalid_argument("[sim] there is no play " + name);
  return *found;
}

void play_seed(const Play& play, std::uint64_t seed, Totals& totals) {
  World world(seed, play.faults, play.actors);
  try {
    world.play(play.jobs, kDeadline);
  } catch (const std::exception& error) {
    throw Violation(world.trace(kTraceLines) + "play " + play.name + ", seed " +
                    std::to_string(seed) + ": " + error.what() +
                    "\nonce more: scripts/sim --play " + play.name + " --seed " +
                    std::to_string(seed));
  }
  ++totals.seeds;
  totals.deaths += world.deaths();
  totals.recoveries += world.recoveries();
  totals.restarts += world.restarts();
  totals.loads += world.loads();
  totals.batched += world.batched();
  totals.retried += world.retried();
  totals.met += world.met();
  totals.most_residents = std::max(totals.most_residents, world.most_residents());
  totals.given_up += world.given_up();
  const auto& links = world.link_counts();
  totals.duplicates += links.duplicates;
  totals.gaps += links.gaps;
  totals.strangers += links.strangers;
  totals.echoes += links.echoes;
  totals.ghosts += links.ghosts;
  for (const auto& [id, job] : world.table().all()) {
    ++totals.jobs;
    totals.broken_off += job.started > 0 && job.state == JobState::failed;
    totals.owed += world.living() > 0 && job.state != JobState::succeeded;
    totals.short_of_memory += job.failure.code == wire::FailureCode::out_of_memory;
    totals.meshes += job.course.parts.size();
    totals.succeeded += job.state == JobState::succeeded ? 1 : 0;
  }
}

}  // namespace troupe::sim
