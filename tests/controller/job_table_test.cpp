#include "controller/jobs/job_table.h"

#include "controller/jobs/step_clock.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using jobs::JobTable;
using wire::JobState;

namespace {

jobs::JobId add(JobTable& table, double now = 0) {
  wire::JobSpec spec;
  spec.request.prompts = {"x"};
  return table.add(spec, plan::make_plan(test::sample_model(), spec.request, {}), 9, false, now)
      .value();
}

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

TEST_CASE("seconds per step are the mean of the last steps") {
  jobs::StepClock clock;
  CHECK(clock.seconds_per_step() == 0);
  clock.completed(0, 10);
  CHECK(clock.seconds_per_step() == 0);
  clock.completed(1, 12);
  clock.completed(2, 14);
  CHECK(clock.seconds_per_step() == doctest::Approx(2));
  CHECK(clock.steps_done() == 2);
}
