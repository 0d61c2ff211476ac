#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/process/support/compare.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

// What a U-Net's jobs say of themselves: report, refusal, plan.

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("a job says what was asked for and how often it called the model") {
  Reference reference("unet_jobs_patches");
  auto submission = reference.submission(reference.find("sd15_pndm"), {.ring = 3});
  int most = 0, of = 0;
  const auto result = shared_cluster().run(submission, [&](const Progress& progress) {
    most = std::max(most, progress.step);
    of = std::max(of, progress.steps);
  });
  CHECK(most == 7);
  CHECK(of == 7);
  const auto said = nlohmann::json::parse(result.report)["request"];
  CHECK(said["steps"] == 6);
  CHECK(said["model_calls"] == 7);
  CHECK(said["skipped_steps"] == 0);
  const auto parameters = png_text(result.pictures[0].png, "parameters");
  CHECK(has(parameters, "Steps: 6, Sampler: pndm"));
  CHECK(has(plan::to_text(plan_of(submission)), "steps 6, calls of the model 7 (2 synchronous)"));

  // Warm-up and refills count calls: the last is step 6.
  submission.request.refill_steps = {6};
  submission.request.warmup_steps = 2;
  CHECK(shared_cluster().run(submission).pictures.size() == 1);
  submission.request.refill_steps = {7};
  CHECK(has(shared_cluster().refusal(submission).what,
            "`refill_steps` have 7, but of 7 steps the last is 6"));
  submission.request.refill_steps.clear();
  submission.request.warmup_steps = 8;
  CHECK(has(shared_cluster().refusal(submission).what, "`warmup_steps` is 8, but `steps` is 6"));

  auto rounds = reference.submission(reference.find("sd15_pndm_rounds"));
  rounds.request.steps = 3;
  CHECK(has(shared_cluster().refusal(rounds).what, "steps is 3, but pndm begins with rounds"));
}

TEST_CASE("what a U-Net cannot do is refused by name, with the reason") {
  Reference reference("unet_jobs_patches");
  const auto refused = [&](void (*change)(Submission&), const std::string& why) {
    auto submission = reference.submission(reference.find("sdxl_corrected"));
    change(submission);
    const auto error = shared_cluster().refusal(submission);
    CAPTURE(error.what);
    CAPTURE(why);
    CHECK(error.code == ErrorCode::bad_request);
    CHECK(has(error.what, why));
  };
  refused([](Submission& s) { s.parallelism.pp = 2; }, "`pp` is 2");
  refused([](Submission& s) { s.parallelism.tp = 2; }, "`tp` is 2");
  refused([](Submission& s) { s.request.method = "pipefusion"; }, "`method` is pipefusion");
  refused([](Submission& s) { s.request.kv = "predict"; }, "`kv` is predict");
  refused([](Submission& s) { s.request.warmup_steps = 0; }, "`warmup_steps` is 0");
  refused([](Submission& s) { s.parallelism.ring = 4; },
          "`num_pipeline_patch` is 3, but `ulysses` × `ring` is 4");
  refused([](Submission& s) { s.request.num_pipeline_patch = 13; }, "`num_pipeline_patch` is 13");
  refused([](Submission& s) { s.request.group_norm = "none"; }, "`group_norm` is \"none\"");
  refused([](Submission& s) { s.request.exchange = "some"; }, "`exchange` is \"some\"");
  refused(
      [](Submission& s) {
        s.request.exchange = "none";
        s.request.group_norm = "synchronous";
      },
      "`exchange` is none, but `group_norm` is synchronous");
  refused(
      [](Submission& s) {
        s.request.exchange = "naive";
        s.request.group_norm = "stale";
      },
      "`exchange` is naive, but `group_norm` is stale");
  refused(
      [](Submission& s) {
        s.request.exchange = "naive";
        s.request.refill_steps = {3};
      },
      "`exchange` is naive, but `refill_steps` is given");
  refused(
      [](Submission& s) {
        s.request.method = "exact";
        s.request.num_pipeline_patch = 1;
        s.request.exchange = "naive";
      },
      "`exchange` is naive, but `method` is exact");
  refused(
      [](Submission& s) {
        s.model = checkpoint("tiny-sd3");
        s.request.max_sequence_length = 0;
        s.request.exchange = "naive";
      },
      "text and picture attend to each other");
  refused(
      [](Submission& s) {
        s.request.method = "exact";
        s.request.num_pipeline_patch = 1;
        s.request.group_norm = "stale";
      },
      "`group_norm` is stale, but `method` is exact");
  refused([](Submission& s) { s.request.max_sequence_length = 12; }, "`max_sequence_length` is 12");
  refused(
      [](Submission& s) {
        s.model = checkpoint("tiny-pixart");
        s.request.max_sequence_length = 12;
        s.request.exchange = "none";
      },
      "this model is a transformer");
}

TEST_CASE("plans know a U-Net's weights, what is kept and what each rank sends, to the byte") {
  Reference reference("unet_jobs_patches");
  const Parallelism mixes[] = {{}, {.cfg = 2}, {.ulysses = 2}, {.cfg = 2, .ring = 3}};
  for (const std::string name :
       {"sdxl_corrected", "sdxl_separate", "sdxl_synchronous", "sdxl_none", "sdxl_all",
        "sdxl_naive", "sd15_stale", "sd15_uneven", "sd15_thin"}) {
    for (const auto& mix : mixes) {
      for (const bool exact : {false, true}) {
        if (exact && name != "sd15_thin") continue;
        CAPTURE(name + (exact ? " exact" : "") + " at " + name_of(mix));
        auto submission = reference.submission(reference.find(name), mix);
        submission.request.dtype = "bfloat16";
        if (exact) {
          submission.request.method = "exact";
          submission.request.num_pipeline_patch = 1;
        }
        const Foreseen foreseen(submission);
        const auto report = nlohmann::json::parse(shared_cluster().run(submission).report);
        check_weights(report, foreseen);
        check_kv(report, foreseen);
        check_sent(report, foreseen);
        check_sent_by_layer(report, foreseen);
      }
    }
  }
}
