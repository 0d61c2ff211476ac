#include <map>
#include <optional>

#include "controller/jobs/run.h"
#include "tests/controller/runner_stage.h"

// How long a job's steps take, as those are told who follow it.

using namespace troupe;
using Stage = test::RunnerStage;

TEST_CASE("seconds per step are the mean of the last steps") {
  jobs::StepClock clock;
  CHECK(clock.seconds_per_step() == 0);
  clock.completed(0, 10);
  CHECK(clock.seconds_per_step() == 0);
  clock.completed(1, 12);
  clock.completed(2, 14);
  CHECK(clock.seconds_per_step() == doctest::Approx(2));
  clock.restart();
  clock.completed(3, 1000);
  CHECK(clock.seconds_per_step() == 0);
  clock.completed(4, 1003);
  CHECK(clock.seconds_per_step() == doctest::Approx(3));
}

TEST_CASE("seconds per step are told from the second step on that is like those to come") {
  for (const int warmup : {0, 3}) {
    CAPTURE(warmup);
    Stage stage;
    std::map<int, bool> told;  // by steps done
    std::map<int, std::optional<double>> timesteps;
    stage.on_progress = [&](const wire::JobProgress& progress) {
      if (progress.phase == JobPhase::denoising)
        told[progress.step] = progress.seconds_per_step > 0;
      timesteps[progress.step] = progress.timestep;
    };
    wire::JobSpec spec;
    spec.request.prompts = {"x"};
    spec.request.steps = 8;
    spec.request.warmup_steps = warmup;
    if (warmup > 0) {
      spec.request.method = Method::pipefusion;
      spec.request.num_pipeline_patch = 2;
    }
    auto plan = plan::make_plan(test::sample_model(), spec.request, {});
    const auto job = stage.table.add(spec, std::move(plan), 0, false, 0).value();
    stage.runner.start_queued();
    REQUIRE(stage.reaches(job, JobState::running));
    REQUIRE(stage.until([&] {
      for (const auto& [id, task] : stage.runner.dispatcher().queue(0)) {
        wire::TaskDone done;
        done.epoch = stage.deployments.at(0).back()->epoch;
        done.job = id;
        done.task = task;
        const auto& what = stage.runner.dispatcher().task(id, task);
        if (what.ends_step) done.timestep = 900 - what.step;
        stage.runner.task_done(0, done);
      }
      return has_ended(stage.table.find(job)->state);
    }));
    REQUIRE(told.size() == 9);
    for (const auto& [step, known] : told) {
      CAPTURE(step);
      CHECK(known == (step >= warmup + 2));
    }
    REQUIRE(timesteps.size() == 9);
    for (const auto& [step, timestep] : timesteps)
      CHECK(timestep == (step > 0 ? std::optional<double>(901 - step) : std::nullopt));
  }
}
