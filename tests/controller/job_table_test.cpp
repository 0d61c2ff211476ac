#include "controller/jobs/job_table.h"

#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using jobs::JobTable;

namespace {

jobs::JobId add(JobTable& table, double now = 0, const std::string& share = {}, int priority = 0,
                std::uint64_t owner = 9) {
  wire::JobSpec spec;
  spec.request.prompts = {"x"};
  spec.share = share;
  spec.priority = priority;
  return table.add(spec, plan::make_plan(test::sample_model(), spec.request, {}), owner, false, now)
      .value();
}

using Ids = std::vector<jobs::JobId>;

}  // namespace

TEST_CASE("a job goes its way once") {
  JobTable table(4, 4);
  const auto id = add(table, 1);
  CHECK(table.position(id) == 0);
  CHECK_FALSE(table.run(id));
  CHECK(table.start(id, 2));
  CHECK_FALSE(table.start(id, 3));
  CHECK(table.queue().empty());
  CHECK(table.run(id));
  CHECK(table.count(JobState::running) == 1);
  CHECK_FALSE(table.finish(id, JobState::running, {}, 4));
  CHECK(table.finish(id, JobState::failed, {wire::FailureCode::lost, "gone"}, 4));
  CHECK_FALSE(table.finish(id, JobState::succeeded, {}, 5));
  CHECK(table.find(id)->state == JobState::failed);
  CHECK(table.find(id)->ended == 4);
  CHECK(table.ended_count() == 1);
}

TEST_CASE("the queue is bounded and forgets cancelled jobs") {
  JobTable table(2, 4);
  const auto first = add(table);
  add(table);
  wire::JobSpec spec;
  spec.request.prompts = {"x"};
  CHECK_FALSE(table.add(spec, {}, 9, false, 0).has_value());
  CHECK(table.finish(first, JobState::cancelled, {}, 1));
  CHECK(table.queue().size() == 1);
  CHECK(table.add(spec, {}, 9, false, 0).has_value());
}

TEST_CASE("only so many ended jobs are remembered") {
  JobTable table(8, 2);
  for (int i = 0; i < 4; ++i)
    table.finish(add(table), JobState::cancelled, {}, 0);
  const auto gone = table.expire();
  REQUIRE(gone.size() == 2);
  CHECK(gone[0].id == 1);
  CHECK(table.find(1) == nullptr);
  CHECK(table.find(4) != nullptr);
}

TEST_CASE("an ended job of whose end nobody is told yet is remembered until then") {
  JobTable table(8, 2, 100);
  const auto end_one = [&](bool unreported) {
    const auto id = add(table);
    table.finish(id, JobState::succeeded, {}, 0);
    table.find(id)->client.unreported = unreported;
    table.find(id)->outcome.blobs = {{"picture", id, 60, {}}};
  };
  const auto gone = [&] {
    Ids ids;
    for (const auto& job : table.expire())
      ids.push_back(job.id);
    return ids;
  };
  for (const bool unreported : {true, false, true, true, false})
    end_one(unreported);
  CHECK(gone() == Ids{2});  // of two there are too many bytes
  end_one(true);
  CHECK(gone().empty());
  for (const jobs::JobId id : {3, 6, 1, 4}) {
    table.find(id)->client.unreported = false;
    CHECK(gone() == Ids{id == 6 ? 5 : id});
  }
  CHECK(table.find(6) != nullptr);
}

TEST_CASE("the queue goes by priority, then fair shares, then age") {
  JobTable table(16, 16);
  for (int i = 0; i < 3; ++i)
    add(table, 0, "many");
  add(table, 0, "few");
  CHECK(table.queue() == Ids{1, 4, 2, 3});
  add(table, 0, "many", 5);
  CHECK(table.queue() == Ids{5, 4, 1, 2, 3});
  CHECK(table.position(5) == 0);
  CHECK(table.position(3) == 4);
  add(table, 0, "few", -1);
  CHECK(table.queue().back() == 6);
}

TEST_CASE("what a share has had, and what it has under way, counts") {
  JobTable table(16, 16);
  const auto first = add(table, 0, "a");
  add(table, 0, "a");
  add(table, 0, "b");
  CHECK(table.queue() == Ids{1, 3, 2});
  table.start(first, 1);
  CHECK(table.queue() == Ids{3, 2});
  table.run(first);
  table.charge(first, 40);
  CHECK(table.service("a") == 40);
  table.finish(first, JobState::succeeded, {}, 11);
  CHECK(table.service("a") == 40);
  CHECK(table.find(first)->cost.actor_seconds == 40);
  add(table, 12, "b");
  CHECK(table.queue() == Ids{3, 4, 2});
  // "c" comes in with no claim on the past: it is where the least of the others is.
  add(table, 13, "c");
  CHECK(table.service("c") == 0);
  table.finish(5, JobState::cancelled, {}, 14);
  table.finish(3, JobState::cancelled, {}, 14);
  table.finish(4, JobState::cancelled, {}, 14);
  CHECK(table.service("b") == 0);
  add(table, 15, "b");
  CHECK(table.service("b") == 40);
}

TEST_CASE("a job of which nobody says what it cost is charged with its time") {
  JobTable table(4, 4);
  const auto id = add(table, 0, "a");
  add(table, 0, "a");
  table.start(id, 2);
  table.finish(id, JobState::failed, {}, 5);
  CHECK(table.service("a") == doctest::Approx(3));
  table.charge(id, 7);
  CHECK(table.service("a") == doctest::Approx(3));
}

TEST_CASE("without a name a job counts for its client") {
  JobTable table(8, 8);
  add(table, 0, "", 0, 7);
  add(table, 0, "", 0, 7);
  add(table, 0, "", 0, 8);
  CHECK(jobs::share_of(*table.find(3)) == "client 8");
  CHECK(table.queue() == Ids{1, 3, 2});
}

TEST_CASE("jobs of an earlier controller stay before those that come after them") {
  JobTable table(8, 8);
  for (const jobs::JobId id : {1, 2, 3}) {
    jobs::JobEntry job;
    job.id = id;
    table.restore(std::move(job));
    table.let_go(id);
  }
  table.start(1, 0);
  add(table, 1, "", 0, 7);
  CHECK(table.queue() == Ids{2, 3, 4});
  table.charge(1, 40);
  table.finish(1, JobState::succeeded, {}, 40);
  add(table, 41, "", 0, 8);
  CHECK(table.queue() == Ids{2, 3, 4, 5});
}

TEST_CASE("a job that begins anew is charged for both times") {
  JobTable table(4, 4);
  const auto id = add(table, 0, "a");
  add(table, 0, "a");
  table.start(id, 10);
  table.charge(id, 5);
  CHECK(table.requeue(id));
  table.start(id, 20);
  CHECK(table.finish(id, JobState::succeeded, {}, 32));
  CHECK(table.find(id)->cost.actor_seconds == 17);
  CHECK(table.service("a") == 17);
}
