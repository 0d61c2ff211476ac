#include <algorithm>
#include <string>

#include "tests/sim/plays.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

/// More seeds, and one alone: scripts/sim.
sim::Totals play(const std::string& name, std::uint64_t count) {
  sim::Totals totals;
  try {
    for (std::uint64_t seed = 1; seed <= count; ++seed)
      sim::play_seed(sim::play_of(name), seed, totals);
  } catch (const std::exception& error) {
    FAIL_CHECK(std::string(error.what()));
  }
  MESSAGE(name << ": " << totals.seeds << " seeds, " << totals.jobs << " jobs, " << totals.succeeded
               << " succeeded, " << totals.deaths << " deaths, " << totals.recoveries
               << " recoveries, " << totals.restarts << " controllers");
  return totals;
}

}  // namespace

TEST_CASE("without faults every job succeeds") {
  const auto totals = play("calm", 800);
  CHECK(totals.succeeded == totals.jobs);
  CHECK(totals.deaths == 0);
}

TEST_CASE("processes that die and hang cost no job its end") {
  const auto totals = play("deaths", 1800);
  CHECK(totals.recoveries > 0);
  // A single loss does not fail a job; several in a row at one step may.
  CHECK(totals.succeeded > totals.jobs * 99 / 100);
}

TEST_CASE("several deaths at once, slow loads, ends that are told late") {
  const auto totals = play("mass-kills", 800);
  CHECK(totals.succeeded > totals.jobs * 99 / 100);
}

TEST_CASE("links that lose, double and cut what they carry, one way and both") {
  const auto totals = play("links", 1500);
  CHECK(totals.succeeded > totals.jobs * 95 / 100);
}

TEST_CASE("links whose numbers find what is doubled and overtaken, and that stand still") {
  const auto totals = play("orders", 1200);
  CHECK(totals.duplicates > totals.seeds);
  CHECK(totals.gaps > totals.seeds / 10);
  CHECK(totals.strangers > 0);
  CHECK(totals.deaths > 0);
  CHECK(totals.succeeded > totals.jobs * 95 / 100);
}

TEST_CASE("processes that stop for seconds, beyond the deadlines of answers, and go on") {
  const auto totals = play("stops", 900);
  CHECK(totals.deaths > 0);
  CHECK(totals.succeeded > totals.jobs * 95 / 100);
}

TEST_CASE("nothing of a dead incarnation takes effect, however late it comes") {
  const auto totals = play("ghosts", 1200);
  CHECK(totals.ghosts > totals.deaths);
  CHECK(totals.strangers > 0);
  CHECK(totals.succeeded > totals.jobs * 4 / 5);
}

TEST_CASE("what the rooms are told twice changes nothing the second time") {
  const auto totals = play("echoes", 800);
  CHECK(totals.echoes > totals.seeds);
  CHECK(totals.succeeded > totals.jobs / 2);
}

TEST_CASE("an elastic job ends well as long as one actor is left") {
  for (const auto* name : {"elastic-deaths", "elastic-hangs"}) {
    const auto totals = play(name, 500);
    CHECK(totals.succeeded == totals.jobs);
    CHECK(totals.recoveries > 0);
    CHECK(totals.meshes > totals.jobs);
  }
  const auto totals = play("rigid-deaths", 100);
  CHECK(totals.succeeded < totals.jobs);
}

TEST_CASE("controllers that end without a word lose no job and do none twice") {
  const auto totals = play("restarts", 1000);
  CHECK(totals.restarts > 1000);
  CHECK(totals.succeeded == totals.jobs);
}

TEST_CASE("controllers end, and actors, too, with all that links and disks can do") {
  const auto totals = play("restarts-all", 1200);
  CHECK(totals.restarts > 1000);
}

TEST_CASE("actors are drained, hosts are lost: no elastic job is, while an actor is left") {
  const auto drained = play("drains", 400);
  // Who needs more actors than are left is told so; who has begun ends.
  CHECK(drained.broken_off == 0);
  CHECK(drained.succeeded > drained.jobs * 9 / 10);
  const auto totals = play("drains-all", 900);
  CHECK(totals.owed == 0);
  CHECK(totals.succeeded > totals.jobs / 2);
  CHECK(totals.meshes > totals.succeeded);
}

TEST_CASE("128 jobs on 1,024 actors end well, though racks of 64 actors vanish") {
  const auto totals = play("racks", 12);
  CHECK(totals.jobs == 12 * 128);
  CHECK(totals.deaths > 256);
  CHECK(totals.recoveries > 8);
  CHECK(totals.succeeded == totals.jobs);
}

TEST_CASE("what actors hold follows their memory: nobody holds more, and nobody waits for ever") {
  const auto calm = play("memory", 600);
  CHECK(calm.succeeded == calm.jobs);
  CHECK(calm.most_residents > 1);
  const auto totals = play("memory-all", 900);
  CHECK(totals.succeeded > totals.jobs / 2);
  CHECK(totals.most_residents > 1);
  CHECK(totals.given_up > 10);
}

TEST_CASE("no job is given up for the memory of an actor whose next process is to come") {
  for (const auto* name : {"memory-rigid", "memory-elastic"}) {
    const auto totals = play(name, 600);
    CHECK(totals.short_of_memory == 0);
    CHECK(totals.succeeded > totals.jobs * 9 / 10);
  }
}

TEST_CASE("of two kinds of actors a job has one, and none waits for more than a kind has left") {
  const auto calm = play("kinds", 300);
  CHECK(calm.succeeded == calm.jobs);
  // Who needs more than a kind has left is told so.
  const auto rigid = play("kinds-rigid", 400);
  CHECK(rigid.succeeded < rigid.jobs);
  CHECK(rigid.succeeded > rigid.jobs / 2);
  const auto totals = play("kinds-elastic", 400);
  CHECK(totals.owed == 0);
  CHECK(totals.meshes > totals.succeeded);
  play("kinds-drained", 400);
}

TEST_CASE("jobs that share a pipeline and are cancelled take nothing of the others with them") {
  const auto totals = play("mesh-cancels", 900);
  CHECK(totals.recoveries == 0);
  CHECK(totals.succeeded > totals.jobs / 3);
  CHECK(totals.succeeded < totals.jobs * 9 / 10);
  const auto dying = play("mesh-deaths", 400);
  CHECK(dying.recoveries > 0);
}

TEST_CASE(
    "jobs that stop where something is not finite end when they are let go, and harm no other") {
  const auto totals = play("stops-at-nan", 600);
  CHECK(totals.met > totals.seeds / 4);
  CHECK(totals.succeeded > totals.jobs / 3);
}

TEST_CASE("jobs that may compute as one: each gets what is its own, and ends for itself") {
  const auto calm = play("batches", 250);
  CHECK(calm.succeeded == calm.jobs);
  CHECK(calm.batched > calm.jobs / 10);
  CHECK(calm.retried == 0);
  const auto dying = play("batches-deaths", 350);
  CHECK(dying.batched > dying.jobs / 10);
  CHECK(dying.succeeded > dying.jobs * 7 / 10);
}

TEST_CASE("a batch that fails fails no job of it: each tries it alone") {
  const auto totals = play("batches-fail", 250);
  CHECK(totals.retried > 30);
  const auto rest = play("batches-all", 300);
  CHECK(rest.batched > 0);
}

TEST_CASE("batches and controllers that end without a word") {
  const auto totals = play("batches-restarts", 250);
  CHECK(totals.batched > totals.jobs / 20);
  CHECK(totals.succeeded > totals.jobs * 95 / 100);
}

TEST_CASE("everything at once") {
  const auto totals = play("all", 2000);
  CHECK(totals.ghosts > 0);
  CHECK(totals.echoes > 0);
  CHECK(totals.gaps > 0);
}
