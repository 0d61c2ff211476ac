#include "controller/jobs/batching.h"

#include <rapidcheck.h>

#include <functional>

#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using jobs::JobEntry;
using jobs::JobTable;

namespace {

using Ids = std::vector<jobs::JobId>;

wire::JobSpec spec_of(std::size_t prompts = 1, std::uint64_t seed = 0) {
  wire::JobSpec spec;
  spec.request.prompts.assign(prompts, "x");
  spec.request.seed = seed;
  spec.may_batch = true;
  return spec;
}

plan::Plan plan_of(const wire::JobSpec& spec) {
  return plan::make_plan(test::sample_model(), spec.request, spec.parallelism);
}

JobEntry job_of(jobs::JobId id, const wire::JobSpec& spec) {
  JobEntry job;
  job.id = id;
  job.spec = spec;
  job.plan = plan_of(spec);
  return job;
}

Ids ids_of(const std::vector<const JobEntry*>& jobs) {
  Ids ids;
  for (const auto* job : jobs)
    ids.push_back(job->id);
  return ids;
}

std::vector<const JobEntry*> pointers(const std::vector<JobEntry>& jobs) {
  std::vector<const JobEntry*> all;
  for (const auto& job : jobs)
    all.push_back(&job);
  return all;
}

}  // namespace

TEST_CASE("jobs go together that differ in prompts, seed and share alone") {
  const auto first = job_of(1, spec_of());
  auto spec = spec_of(3, 9);
  spec.request.prompts[1] = "y";
  spec.share = "somebody";
  CHECK(jobs::alike(first, job_of(2, spec)));
  const std::vector<std::function<void(wire::JobSpec&)>> changes{
      [](auto& other) { other.model = "/another"; },
      [](auto& other) { other.priority = 1; },
      [](auto& other) { other.elastic = true; },
      [](auto& other) { other.parallelism.pp = 2; },
      [](auto& other) { other.request.negative_prompt = "z"; },
      [](auto& other) { other.request.images_per_prompt = 2; },
      [](auto& other) { other.request.steps = 3; },
      [](auto& other) { other.request.height = other.request.width = 128; },
      [](auto& other) { other.request.sampler = "euler-ancestral"; },
      [](auto& other) { other.request.want_latents = true; },
      [](auto& other) { other.request.dtype = ComputeType::bfloat16; },
      [](auto& other) { other.request.progress_interval = 1; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    auto other = spec_of();
    changes[i](other);
    CHECK_FALSE(jobs::alike(first, job_of(2, other)));
  }
  auto other = job_of(2, spec_of());
  other.fingerprint = 5;
  CHECK_FALSE(jobs::alike(first, other));
}

TEST_CASE("who does not allow it, or cannot, computes alone") {
  auto job = job_of(1, spec_of());
  CHECK(jobs::can_batch(job));
  const std::vector<std::function<void(JobEntry&)>> changes{
      [](auto& other) { other.spec.may_batch = false; },
      [](auto& other) { other.batching.alone = true; },
      [](auto& other) { other.held = true; },
      [](auto& other) { other.state = JobState::running; },
      [](auto& other) { other.course.boundary.emplace(); },
      [](auto& other) { other.spec.request.init_latents_blob = 7; },
      [](auto& other) { other.spec.request.init_image_blob = 7; },
      [](auto& other) { other.spec.request.step_cache = StepCacheRule::teacache; }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    auto other = job;
    changes[i](other);
    CHECK_FALSE(jobs::can_batch(other));
    std::vector<JobEntry> waiting{job, other};
    waiting[1].id = 2;
    CHECK(ids_of(jobs::companions(pointers(waiting), 8, 1)) == Ids{1});
    std::swap(waiting[0], waiting[1]);
    CHECK(ids_of(jobs::companions(pointers(waiting), 8, 1)) == Ids{2});
  }
}

TEST_CASE(
    "companions: the next ones that are alike, up to so many pictures, none where all begin") {
  auto other = spec_of();
  other.request.steps = 3;
  const std::vector<JobEntry> waiting{job_of(1, spec_of(2)), job_of(2, other),
                                      job_of(3, spec_of(3)), job_of(4, spec_of(4)),
                                      job_of(5, spec_of(1))};
  const auto chosen = [&](std::int64_t pictures, std::int64_t places) {
    return ids_of(jobs::companions(pointers(waiting), pictures, places));
  };
  CHECK(chosen(100, 1) == Ids{1, 3, 4, 5});
  CHECK(chosen(9, 1) == Ids{1, 3, 4});
  CHECK(chosen(8, 1) == Ids{1, 3});  // what is next does not fit, and nobody overtakes it
  CHECK(chosen(1, 1) == Ids{1});
  CHECK(chosen(100, 0) == Ids{1, 3, 4, 5});
  CHECK(chosen(100, 2) == Ids{1, 3});
  CHECK(chosen(100, 3) == Ids{1, 3});
  CHECK(chosen(100, 4) == Ids{1});
}

TEST_CASE("jobs with settings of single pictures: the batch has each picture's seed and negative") {
  std::vector<JobEntry> waiting;
  for (jobs::JobId id = 1; id <= 3; ++id) {
    auto spec = spec_of(2, 10 * id);
    spec.request.images_per_prompt = 2;
    spec.request.negative_prompt.reset();
    waiting.push_back(job_of(id, spec));
  }
  waiting[0].spec.request.negative_prompts = {"a", ""};
  waiting[1].spec.request.picture_seeds = {1, 2, 3, 4};
  waiting[1].spec.request.negative_prompts = {"b", "c", "d", "e"};
  // The third gives none, which an empty one is not.
  const auto chosen = jobs::companions(pointers(waiting), 100, 1);
  REQUIRE(chosen.size() == 2);
  CHECK(jobs::differences(waiting[0], waiting[2]) == std::vector<std::string>{"--negative-prompt"});
  const auto request = jobs::combined_request(chosen);
  const std::vector<wire::SeedRun> seeds = {{4, 10}, {1, 1}, {1, 2}, {1, 3}, {1, 4}};
  CHECK(request.seeds == seeds);
  CHECK(request.picture_seeds.empty());
  CHECK(request.pictures_of_jobs == std::vector<std::int32_t>{4, 4});
  const std::vector<std::string> negatives = {"a", "a", "", "", "b", "c", "d", "e"};
  CHECK(request.negative_prompts == negatives);
  const auto batch = plan::make_plan(test::sample_model(), request, {});
  CHECK(batch.request.seeds == seeds);
  CHECK(batch.request.negative_prompts == negatives);
  waiting[2].spec.request.negative_prompts = {"f", "g"};
  CHECK(jobs::companions(pointers(waiting), 100, 1).size() == 3);
}

TEST_CASE("of any jobs: every picture of the batch is one job's, with its prompt and its seed") {
  const bool holds = rc::check([] {
    const auto count = *rc::gen::inRange(1, 6);
    const auto each = *rc::gen::inRange(1, 4);
    std::vector<JobEntry> waiting;
    for (int i = 0; i < count; ++i) {
      auto spec = spec_of(*rc::gen::inRange(1, 4), *rc::gen::arbitrary<std::uint64_t>());
      spec.request.images_per_prompt = each;
      spec.parallelism.dp = 1;
      for (std::size_t p = 0; p < spec.request.prompts.size(); ++p)
        spec.request.prompts[p] = std::to_string(i) + "." + std::to_string(p);
      waiting.push_back(job_of(static_cast<jobs::JobId>(i + 1), spec));
    }
    const auto limit = *rc::gen::inRange(1, 40);
    const auto chosen = jobs::companions(pointers(waiting), limit, 1);
    RC_ASSERT(chosen.front() == &waiting.front());
    const auto request = jobs::combined_request(chosen);
    const auto dp =
        std::min<int>(*rc::gen::inRange(1, 4), static_cast<int>(request.prompts.size()) * each);
    wire::Parallelism degrees;
    degrees.dp = dp;
    const auto batch =
        jobs::batch_of(chosen, plan::make_plan(test::sample_model(), request, degrees));
    const auto pictures = batch.run.plan.picture_count();
    RC_ASSERT(chosen.size() == 1 || pictures <= limit);
    RC_ASSERT(batch.members.back().pictures.end == pictures);
    std::string replicas_bytes;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto& member = batch.members[i];
      const auto& own = chosen[i]->spec.request;
      RC_ASSERT(member.job == chosen[i]->id);
      RC_ASSERT(request.seeds[i].seed == own.seed);
      RC_ASSERT(request.seeds[i].pictures == member.pictures.end - member.pictures.begin);
      RC_ASSERT(member.pictures.begin == (i == 0 ? 0 : batch.members[i - 1].pictures.end));
      std::string latents;
      std::string expected;
      for (auto picture = member.pictures.begin; picture < member.pictures.end; ++picture) {
        expected += std::string(2, static_cast<char>(picture));
        RC_ASSERT(request.prompts[picture / each] ==
                  own.prompts[(picture - member.pictures.begin) / each]);
      }
      for (const auto replica : batch.run.plan.images) {
        std::string bytes;
        for (auto picture = replica.begin; picture < replica.end; ++picture)
          bytes += std::string(2, static_cast<char>(picture));
        const auto share = jobs::share_of_replica(member, replica);
        RC_ASSERT(share.begin <= share.end);
        latents += jobs::cut_pictures(bytes, replica, share);
      }
      RC_ASSERT(latents == expected);
    }
  });
  CHECK(holds);
}

TEST_CASE("a batch in the table is no job: its members run, leave it, and wait again") {
  JobTable table(8, 8);
  for (int i = 0; i < 4; ++i)
    table.add(spec_of(1, i), plan_of(spec_of()), 7, true, 1);
  const std::vector<const JobEntry*> chosen{table.find(1), table.find(3), table.find(4)};
  const auto id = table.join(jobs::batch_of(chosen, plan_of(spec_of(3))), 2).run.id;
  CHECK(id == 5);
  CHECK(table.find(id) == nullptr);
  REQUIRE(table.find_run(id));
  CHECK(table.find_run(2) == table.find(2));
  CHECK(table.all().size() == 4);
  CHECK(table.queue() == Ids{2});
  CHECK(table.count(JobState::loading) == 3);
  CHECK(table.run(id));
  CHECK_FALSE(table.run(id));
  CHECK(table.count(JobState::running) == 3);
  CHECK(table.find(3)->batching.number == id);
  CHECK(table.members_of(id) == Ids{1, 3, 4});
  CHECK(table.finish(3, JobState::cancelled, {}, 3));
  CHECK(table.members_of(id) == Ids{1, 4});
  CHECK(table.requeue(1));
  CHECK_FALSE(table.requeue(1));
  CHECK_FALSE(table.requeue(3));
  CHECK(table.members_of(id) == Ids{4});
  CHECK(table.queue() == Ids{1, 2});  // where it was before
  CHECK(table.find(1)->batching.number == 0);
  CHECK_FALSE(jobs::can_batch(*table.find(1)));
  table.dissolve(id);
  CHECK(table.find_run(id) == nullptr);
  CHECK(table.batches().empty());
}
