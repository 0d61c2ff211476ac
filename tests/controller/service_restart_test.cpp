#include <chrono>
#include <string>
#include <vector>

#include "controller/journal/journal.h"
#include "controller/journal/memory_store.h"
#include "controller/service/client_service.h"
#include "tests/controller/service_fixture.h"
#include "tests/support/doctest.h"

// Jobs and clients that outlive their controller, or a link.

using namespace troupe;
using troupe::test::ServiceFixture;

namespace {

/// Returns the store of a controller that has taken in jobs under these keys.
journal::MemoryStore left_with(const std::vector<std::uint64_t>& keys) {
  ServiceFixture before(/*journaled=*/true);
  before.gate.open();
  for (const auto key : keys)
    before.take_in(*before.client, key);
  return before.store;
}

journal::Revival revived(ServiceFixture& fixture, journal::MemoryStore& store) {
  return journal::revive(
      store.load(), store.previous_run(), {0},
      [&](control::BlobBytes bytes) { return fixture.blobs.add(std::move(bytes)); }, fixture.table);
}

}  // namespace

TEST_CASE("after a restart: who does not come back loses its job, who comes back keeps it") {
  auto store = left_with({1, 2});
  ServiceFixture fixture(/*journaled=*/true);
  fixture.gate.open();
  fixture.clients.take_up(revived(fixture, store), "killed");
  bool back = false;
  fixture.client->request(wire::WaitJob{2}, std::chrono::seconds(60),
                          [&](const auto&) { back = true; });
  REQUIRE(fixture.until([&] { return back; }));
  REQUIRE(fixture.until([&] { return fixture.table.find(1)->state == JobState::cancelled; }));
  CHECK(fixture.table.find(1)->failure.what ==
        "its client has not come back after its controller's restart");
  CHECK(fixture.table.find(2)->state == JobState::queued);
  CHECK(fixture.until([&] { return fixture.table.queue() == std::vector<jobs::JobId>{2}; }));
}

TEST_CASE("after a restart a job waits for a host with memory enough to join again") {
  auto store = left_with({1});
  for (const bool joins : {true, false}) {
    CAPTURE(joins);
    ServiceFixture fixture(/*journaled=*/true);
    fixture.gate.open();
    const auto revival = revived(fixture, store);
    auto& job = *fixture.table.find(1);
    job.client.detached = true;
    fixture.clients.take_up(revival, "killed");
    REQUIRE(fixture.until([&] { return job.model != nullptr; }));
    // Its only actor has not said yet how much it may hold.
    CHECK(fixture.table.queue().empty());
    fixture.members.limit_memory(0, 1000);
    fixture.runner.start_queued();
    CHECK(job.state == JobState::queued);
    CHECK(fixture.table.count(JobState::queued) == 1);
    CHECK(fixture.runner.waits_for(job) ==
          "waits for 1 actor, for 3 s at most: 1 is here, too small for it (its controller was "
          "started again)");
    if (joins) {
      fixture.members.limit_memory(fixture.members.add("there", "cpu", /*remote=*/true).id,
                                   1ull << 40);
      fixture.runner.start_queued();
    }
    REQUIRE(fixture.until(
        [&] { return !fixture.table.queue().empty() || job.state == JobState::failed; }));
    CHECK(job.state == (joins ? JobState::queued : JobState::failed));
    if (!joins) CHECK(job.failure.code == wire::FailureCode::out_of_memory);
  }
}

TEST_CASE("a job whose model is gone after a restart fails, and says why") {
  ServiceFixture fixture(/*journaled=*/true);
  fixture.gate.open();
  jobs::JobEntry job;
  job.id = 4;
  job.spec.model = "bad";
  job.spec.request.prompts = {"x"};
  job.phase = JobPhase::denoising;
  job.state = JobState::running;
  job.client.detached = true;
  fixture.table.restore(job);
  fixture.clients.take_up({.to_plan = {4}, .cancelled = {}}, "killed");
  REQUIRE(fixture.until([&] { return fixture.table.find(4)->state == JobState::failed; }));
  CHECK(fixture.table.find(4)->failure.what ==
        "killed, and the job cannot go on: [read_model] bad: no such folder");
}

TEST_CASE("a job that was to be cancelled when its controller ended is cancelled by the next one") {
  ServiceFixture fixture(/*journaled=*/true);
  jobs::JobEntry job;
  job.id = 4;
  job.spec.request.prompts = {"x"};
  job.state = JobState::running;
  job.cancel_asked = true;
  job.failure = {wire::FailureCode::cancelled, "not wanted"};
  fixture.table.restore(job);
  fixture.clients.take_up({.to_plan = {}, .cancelled = {4}}, "killed");
  CHECK(fixture.table.find(4)->state == JobState::cancelled);
  CHECK(fixture.table.find(4)->failure.what == "not wanted");
  REQUIRE(fixture.recorder.find(4));
  CHECK(fixture.recorder.find(4)->state == JobState::cancelled);
  CHECK(fixture.recorder.ended_totals().at(JobState::cancelled) == 1);
}

TEST_CASE("with a journal a job goes on when its client is back before its old link is given up") {
  for (const bool journaled : {true, false}) {
    CAPTURE(journaled);
    ServiceFixture fixture(journaled);
    fixture.gate.open();
    auto first = fixture.connect();
    fixture.take_in(*first);
    auto second = fixture.connect();
    bool back = false;
    second->request(wire::WaitJob{1}, std::chrono::seconds(60), [&](const auto&) { back = true; });
    REQUIRE(fixture.until([&] { return back; }));
    const auto& job = *fixture.table.find(1);
    const auto cancelled = [&] { return job.state == JobState::cancelled; };
    const auto owner = job.client.owner;
    first->close();
    if (journaled) {
      REQUIRE(fixture.until([&] { return job.client.owner != owner; }));
      CHECK(job.state == JobState::queued);
      second->close();
    }
    REQUIRE(fixture.until(cancelled));
    CHECK(job.failure.what ==
          (journaled ? "its client has not come back (who waited for it meanwhile is gone)"
                     : "its client is gone"));
  }
}

TEST_CASE("a link that was given up costs a job only if its client is not back in time") {
  for (const bool journaled : {true, false}) {
    for (const bool returns : {true, false}) {
      CAPTURE(journaled);
      CAPTURE(returns);
      ServiceFixture fixture(journaled);
      fixture.gate.open();
      auto first = fixture.connect();
      fixture.take_in(*first);
      const auto& job = *fixture.table.find(1);
      const auto owner = job.client.owner;
      const auto cancelled = [&] { return job.state == JobState::cancelled; };
      // What a client says that heard nothing for too long.
      first->close("no sign of life from the controller at here for 5000 ms",
                   wire::LinkEnd::silent);
      REQUIRE(fixture.until([&] { return job.client.owner != owner || cancelled(); }));
      CHECK(cancelled() == !journaled);
      if (!journaled) {
        CHECK(job.failure.what == "its client is gone");
        continue;
      }
      CHECK(job.state == JobState::queued);
      if (returns) {
        auto second = fixture.connect();
        bool back = false;
        second->request(wire::WaitJob{1}, std::chrono::seconds(60),
                        [&](const auto&) { back = true; });
        REQUIRE(fixture.until([&] { return back; }));
        // Past the grace it is still there. Who closes its link may have been somebody else.
        fixture.until([&, end = control::Clock::now() + std::chrono::milliseconds(3300)] {
          return control::Clock::now() > end;
        });
        CHECK(job.state == JobState::queued);
        second->close("no sign of life any more");  // what it says of why decides nothing
        REQUIRE(fixture.until([&] { return job.client.owner == 0; }));
        CHECK(job.state == JobState::queued);
      }
      REQUIRE(fixture.until(cancelled));
      CHECK(job.failure.what == (returns
                                     ? "its client has not come back (who waited for it meanwhile "
                                       "is gone)"
                                     : "its client has not come back (said goodbye: no sign of "
                                       "life from the controller at here for 5000 ms)"));
    }
  }
}
