#include <chrono>
#include <string>
#include <vector>

#include "controller/gateway/gateway.h"
#include "controller/journal/memory_store.h"
#include "controller/journal/revive.h"
#include "tests/controller/hall.h"
#include "tests/support/doctest.h"

// Jobs and clients that outlive their controller, or a link.

using namespace troupe;
using troupe::test::Hall;

namespace {

/// What a controller leaves that has taken in jobs under these keys.
journal::MemoryStore left_with(const std::vector<std::uint64_t>& keys) {
  Hall before(/*journaled=*/true);
  before.gate.open();
  for (const auto key : keys)
    before.take_in(*before.client, key);
  return before.store;
}

journal::Revival revived(Hall& hall, journal::MemoryStore& store) {
  return journal::revive(
      store.load(), store.past(), {0},
      [&](control::BlobBytes bytes) { return hall.blobs.add(std::move(bytes)); }, hall.table);
}

}  // namespace

TEST_CASE("after a restart: who does not come back loses its job, who comes back keeps it") {
  auto store = left_with({1, 2});
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  hall.gateway.take_up(revived(hall, store), "killed");
  bool back = false;
  hall.client->request(wire::WaitJob{2}, std::chrono::seconds(60),
                       [&](const auto&) { back = true; });
  REQUIRE(hall.until([&] { return back; }));
  REQUIRE(hall.until([&] { return hall.table.find(1)->state == wire::JobState::cancelled; }));
  CHECK(hall.table.find(1)->failure.what ==
        "its client has not come back after its controller's restart");
  CHECK(hall.table.find(2)->state == wire::JobState::queued);
  CHECK(hall.until([&] { return hall.table.queue() == std::vector<jobs::JobId>{2}; }));
}

TEST_CASE("after a restart a job waits for a host with memory enough to join again") {
  auto store = left_with({1});
  for (const bool joins : {true, false}) {
    CAPTURE(joins);
    Hall hall(/*journaled=*/true);
    hall.gate.open();
    const auto revival = revived(hall, store);
    auto& job = *hall.table.find(1);
    job.client.detached = true;
    hall.gateway.take_up(revival, "killed");
    REQUIRE(hall.until([&] { return job.model != nullptr; }));
    // Its only actor has not said yet how much it may hold.
    CHECK(hall.table.queue().empty());
    hall.members.limit_memory(0, 1000);
    hall.until([&, end = control::Clock::now() + std::chrono::milliseconds(220)] {
      return control::Clock::now() > end;
    });
    CHECK(job.state == wire::JobState::queued);
    if (joins)
      hall.members.limit_memory(hall.members.add("there", "cpu", /*remote=*/true).id, 1ull << 40);
    REQUIRE(hall.until(
        [&] { return !hall.table.queue().empty() || job.state == wire::JobState::failed; }));
    CHECK(job.state == (joins ? wire::JobState::queued : wire::JobState::failed));
    if (!joins) CHECK(job.failure.code == wire::FailureCode::out_of_memory);
  }
}

TEST_CASE("a job whose model is gone after a restart fails, and says why") {
  Hall hall(/*journaled=*/true);
  hall.gate.open();
  jobs::JobEntry job;
  job.id = 4;
  job.spec.model = "bad";
  job.spec.request.prompts = {"x"};
  job.phase = "denoising";
  job.state = wire::JobState::running;
  job.client.detached = true;
  hall.table.restore(job);
  hall.gateway.take_up({.to_plan = {4}, .cancelled = {}}, "killed");
  REQUIRE(hall.until([&] { return hall.table.find(4)->state == wire::JobState::failed; }));
  CHECK(hall.table.find(4)->failure.what ==
        "killed, and the job cannot go on: [read_model] bad: no such folder");
}

TEST_CASE("a job that was to be cancelled when its controller ended is cancelled by the next one") {
  Hall hall(/*journaled=*/true);
  jobs::JobEntry job;
  job.id = 4;
  job.spec.request.prompts = {"x"};
  job.state = wire::JobState::running;
  job.cancel_asked = true;
  job.failure = {wire::FailureCode::cancelled, "not wanted"};
  hall.table.restore(job);
  hall.gateway.take_up({.to_plan = {}, .cancelled = {4}}, "killed");
  CHECK(hall.table.find(4)->state == wire::JobState::cancelled);
  CHECK(hall.table.find(4)->failure.what == "not wanted");
  REQUIRE(hall.recorder.find(4));
  CHECK(hall.recorder.find(4)->state == "cancelled");
  CHECK(hall.recorder.ended_totals().at("cancelled") == 1);
}

TEST_CASE("with a journal a job goes on when its client is back before its old link is given up") {
  for (const bool journaled : {true, false}) {
    CAPTURE(journaled);
    Hall hall(journaled);
    hall.gate.open();
    auto first = hall.connect();
    hall.take_in(*first);
    auto second = hall.connect();
    bool back = false;
    second->request(wire::WaitJob{1}, std::chrono::seconds(60), [&](const auto&) { back = true; });
    REQUIRE(hall.until([&] { return back; }));
    const auto& job = *hall.table.find(1);
    const auto cancelled = [&] { return job.state == wire::JobState::cancelled; };
    const auto owner = job.client.owner;
    first->close();
    if (journaled) {
      REQUIRE(hall.until([&] { return job.client.owner != owner; }));
      CHECK(job.state == wire::JobState::queued);
      second->close();
    }
    REQUIRE(hall.until(cancelled));
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
      Hall hall(journaled);
      hall.gate.open();
      auto first = hall.connect();
      hall.take_in(*first);
      const auto& job = *hall.table.find(1);
      const auto owner = job.client.owner;
      const auto cancelled = [&] { return job.state == wire::JobState::cancelled; };
      // What a client says that heard nothing for too long.
      first->close("no sign of life from the controller at here for 5000 ms",
                   wire::LinkEnd::silent);
      REQUIRE(hall.until([&] { return job.client.owner != owner || cancelled(); }));
      CHECK(cancelled() == !journaled);
      if (!journaled) {
        CHECK(job.failure.what == "its client is gone");
        continue;
      }
      CHECK(job.state == wire::JobState::queued);
      if (returns) {
        auto second = hall.connect();
        bool back = false;
        second->request(wire::WaitJob{1}, std::chrono::seconds(60),
                        [&](const auto&) { back = true; });
        REQUIRE(hall.until([&] { return back; }));
        // Past the grace it is still there. Who closes its link may have been somebody else.
        hall.until([&, end = control::Clock::now() + std::chrono::milliseconds(3300)] {
          return control::Clock::now() > end;
        });
        CHECK(job.state == wire::JobState::queued);
        second->close("no sign of life any more");  // what it says of why decides nothing
        REQUIRE(hall.until([&] { return job.client.owner == 0; }));
        CHECK(job.state == wire::JobState::queued);
      }
      REQUIRE(hall.until(cancelled));
      CHECK(job.failure.what == (returns
                                     ? "its client has not come back (who waited for it meanwhile "
                                       "is gone)"
                                     : "its client has not come back (said goodbye: no sign of "
                                       "life from the controller at here for 5000 ms)"));
    }
  }
}
