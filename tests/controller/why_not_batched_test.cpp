#include "controller/jobs/batching.h"

#include <functional>
#include <optional>

#include "tests/controller/runner_stage.h"
#include "tests/controller/sample_model.h"
#include "tests/controller/service_fixture.h"
#include "tests/support/doctest.h"

using namespace troupe;
using jobs::JobEntry;

namespace {

using Texts = std::vector<std::string>;
using Change = std::function<void(wire::JobSpec&)>;

JobEntry job_of(
    jobs::JobId id, const Change& change = [](wire::JobSpec&) {}) {
  JobEntry job;
  job.id = id;
  job.spec.request.prompts = {"x"};
  job.spec.may_batch = true;
  change(job.spec);
  job.plan = plan::make_plan(test::sample_model(), job.spec.request, job.spec.parallelism);
  return job;
}

/// Returns why the first of the waiting jobs is not batched.
std::string why(const std::vector<JobEntry>& waiting, std::int64_t max_pictures = 8,
                std::int64_t places = 1) {
  std::vector<const JobEntry*> others;
  for (const auto& job : waiting)
    others.push_back(&job);
  others.erase(others.begin());
  return jobs::why_not_batched(waiting.front(), others, max_pictures, places);
}

}  // namespace

TEST_CASE("why a job that may batch does not: what its request says") {
  const std::vector<std::pair<Change, std::string>> bars{
      {[](auto& spec) { spec.request.step_cache = StepCacheRule::first_block; },
       "its step cache decides by values that a batch rounds otherwise"},
      {[](auto& spec) { spec.request.init_image_blob = spec.request.init_image_bytes = 7; },
       "it starts from a picture of its own"},
      {[](auto& spec) { spec.request.prompts.assign(8, "x"); },
       "it has 8 pictures, and a batch has at most 8 (--max-batch of the cluster)"}};
  for (const auto& [change, text] : bars) {
    const auto job = job_of(1, change);
    CHECK(why({job, job_of(2)}) == text);
    CHECK(jobs::batching_obstacle(job.spec.request, 8) == text);
    JobEntry silent = job;
    silent.spec.may_batch = false;
    CHECK(why({silent, job_of(2)}) == "");
  }
  CHECK(jobs::batching_obstacle(job_of(1).spec.request, 2) == "");
  CHECK(why({job_of(1), job_of(2)}, 1) == "the cluster was started with --max-batch 1");
}

TEST_CASE("why a job that may batch does not: who waits beside it, and what there is") {
  const auto alone = "no other job that may batch waited when it began";
  CHECK(why({job_of(1)}) == alone);
  CHECK(why({job_of(1), job_of(2, [](auto& spec) { spec.may_batch = false; })}) == alone);
  CHECK(why({job_of(1), job_of(2, [](auto& spec) {
               spec.request.step_cache = StepCacheRule::teacache;
             })}) == alone);
  CHECK(why({job_of(1),
             job_of(2,
                    [](auto& spec) {
                      spec.request.steps = 3;
                      spec.elastic = true;
                    }),
             job_of(3, [](auto& spec) { spec.parallelism.pp = 2; })}) ==
        "no job that waited was alike: job 2 differs in --steps, --elastic; job 3 differs in its "
        "degrees");
  CHECK(why({job_of(1), job_of(2)}, 8, 2) ==
        "those that waited could begin side by side on idle actors");
  CHECK(why({job_of(1), job_of(2, [](auto& spec) { spec.request.prompts.assign(7, "x"); })}, 7) ==
        "with job 2 it would have more than the 7 pictures that a batch has at most (--max-batch "
        "of the cluster)");
  CHECK(why({job_of(1), job_of(2)}) ==
        "a batch with job 2 would need more memory, or a longer message, than there is");
  auto again = job_of(1);
  again.batching.alone = true;
  CHECK(why({again, job_of(2)}) == "the batch that it was in has failed");
}

TEST_CASE("jobs that are not alike differ in something that has a name") {
  const std::vector<std::pair<Change, Texts>> changes{
      {[](auto& spec) { spec.model = "/another"; }, {"--model"}},
      {[](auto& spec) { spec.priority = 1; }, {"--priority"}},
      {[](auto& spec) { spec.request.negative_prompt = "z"; }, {"--negative-prompt"}},
      {[](auto& spec) { spec.request.images_per_prompt = 2; }, {"--n"}},
      {[](auto& spec) { spec.request.height = spec.request.width = 128; }, {"--height", "--width"}},
      {[](auto& spec) { spec.request.sampler = "euler-ancestral"; }, {"--sampler"}},
      {[](auto& spec) { spec.request.want_latents = true; }, {"--save-latents"}},
      {[](auto& spec) { spec.request.dtype = ComputeType::bfloat16; }, {"--dtype"}},
      {[](auto& spec) { spec.request.progress_interval = 1; }, {"--preview"}},
      {[](auto& spec) { spec.request.strength = 0.5; }, {"--strength"}},
      {[](auto& spec) { spec.request.init_image_height = 8; }, {"another setting"}}};
  for (const auto& [change, names] : changes) {
    const auto other = job_of(2, change);
    CHECK_FALSE(jobs::alike(job_of(1), other));
    CHECK(jobs::differences(job_of(1), other) == names);
  }
}

TEST_CASE("a job that begins by itself knows why; those behind it say what it waits for") {
  test::RunnerStage stage;
  const auto first = stage.join_queue(8);
  wire::JobSpec shorter;
  shorter.request.steps = 7;
  const auto second = stage.join_queue(1);
  const auto third = stage.join_queue(1, shorter);
  stage.runner.start_queued();
  REQUIRE(stage.reaches(first, JobState::running));
  CHECK(stage.table.find(first)->batching.why_not ==
        "it has 8 pictures, and a batch has at most 8 (--max-batch of the cluster)");
  CHECK(stage.runner.batching_obstacle(stage.table.find(second)->spec.request) == "");
  // They share the first one's actor, one by one.
  CHECK(stage.table.find(second)->batching.why_not ==
        "no job that waited was alike: job 3 differs in --steps");
  CHECK(stage.table.find(third)->batching.why_not ==
        "no other job that may batch waited when it began");
}

TEST_CASE("who waits behind another says what that one waits for") {
  test::RunnerStage stage;
  stage.members.spawned(stage.members.add("here", "cpu").id, 78, 1);  // no hello yet
  wire::JobSpec wide;
  wide.parallelism.pp = 2;
  const auto first = stage.join_queue(1, wide);
  const auto second = stage.submit();
  CHECK(stage.table.find(first)->waits_for == "waits for 2 idle actors: 1 of 2 are");
  CHECK(stage.runner.waits_for(*stage.table.find(second)) ==
        "waits behind job 1, which waits for 2 idle actors: 1 of 2 are");
}

TEST_CASE("a request that never computes with others is told so when it is handed in") {
  test::ServiceFixture fixture;
  fixture.gate.open();
  const auto warnings_of = [&](StepCacheRule step_cache) {
    wire::SubmitJob submission;
    submission.job.model = "a";
    submission.job.request.prompts = {"x"};
    submission.job.request.step_cache = step_cache;
    submission.job.may_batch = true;
    std::optional<Texts> warnings;
    fixture.client->request(submission, std::chrono::seconds(60), [&](const control::Reply& reply) {
      warnings = reply ? reply.as<wire::JobAccepted>().warnings : Texts{reply.failure().what};
    });
    REQUIRE(fixture.until([&] { return warnings.has_value(); }));
    return *warnings;
  };
  CHECK(warnings_of(StepCacheRule::none).empty());
  CHECK(warnings_of(StepCacheRule::first_block) ==
        Texts{"--may-batch has no effect: its step cache decides by values that a batch rounds "
              "otherwise"});
}
