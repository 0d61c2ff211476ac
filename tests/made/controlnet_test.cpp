#include <signal.h>

#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/support/made.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kControlBound = 1e-5;  // of the reference's range, or of the single actor's

std::string text_of(Reference& reference, const nlohmann::json& of, const std::string& key) {
  const auto file = reference.bytes(of, key).data;
  return {file.begin(), file.end()};
}

/// Gives a submission what a case of this book has beside other books'.
void add_controls(Reference& reference, const nlohmann::json& of, Submission& submission) {
  auto& request = submission.request;
  for (const std::string name : of.at("controlnets"))
    request.controlnets.push_back(checkpoint(name));
  for (std::size_t i = 0; i < of.at("controls").size(); ++i)
    request.control_images.push_back(text_of(reference, of, "control" + std::to_string(i)));
  for (const auto& [name, values] : {std::pair{"scale", &request.control_scale},
                                     {"start", &request.control_from},
                                     {"end", &request.control_until}})
    if (!of.at(name).is_null()) *values = of.at(name).get<std::vector<double>>();
  if (!of.contains("init")) return;
  request.init_image = text_of(reference, of, "init");
  request.strength = of.at("strength").get<double>();
}

Submission submission_of(Reference& reference, const std::string& name) {
  const auto& of = reference.find(name);
  auto submission = reference.submission(of);
  add_controls(reference, of, submission);
  return submission;
}

}  // namespace

TEST_CASE("pictures that follow others are those of diffusers' ControlNet pipelines") {
  if (lacks_made_fixtures()) return;
  Reference reference("controlnet");
  Worst latents, levels;
  check_pictures(reference, kControlBound, latents, levels, [&](const auto& of, auto& submission) {
    add_controls(reference, of, submission);
  });
  CHECK(latents.seen == 13);
  CHECK(levels.seen == 6);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("ControlNets are computed by patches of rows, as their U-Net, at any degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("controlnet");
  Worst worst;
  const Parallelism mixes[] = {{.cfg = 2},
                               {.ulysses = 3},
                               {.ring = 2},
                               {.dp = 2, .cfg = 2},
                               {.cfg = 2, .ulysses = 2, .ring = 2}};
  for (const char* name : {"sd15_two", "sdxl_uneven"}) {
    for (const char* method : {"exact", "distrifusion"}) {
      auto submission = submission_of(reference, name);
      submission.request.prompts.push_back("a tree");
      submission.request.method = method;
      const bool exact = submission.request.method == "exact";
      submission.request.num_pipeline_patch = exact ? 1 : 4;
      const auto single = shared_cluster().run(submission).latents.value();
      for (const auto& mix : mixes) {
        const auto where = std::string(name) + " " + method + " at " + name_of(mix);
        CAPTURE(where);
        submission.parallelism = mix;
        const Foreseen foreseen(submission);
        const auto several = shared_cluster().run(submission);
        const double error = range_error(several.latents.value(), single);
        CHECK(error <= kDegreesBound);
        worst.see(error, where);
        const auto report = nlohmann::json::parse(several.report);
        check_weights(report, foreseen);
        check_sent(report, foreseen);
        check_sent_by_layer(report, foreseen);
      }
    }
  }
  MESSAGE(worst.seen << " mixes, latents within " << worst.value << " of range (" << worst.where
                     << ")");
}

TEST_CASE("patches that are all synchronous follow pictures as the whole picture does") {
  if (lacks_made_fixtures()) return;
  Reference reference("controlnet");
  auto submission = submission_of(reference, "sd15_two");
  const auto exact = shared_cluster().run(submission).latents.value();
  submission.request.method = "distrifusion";
  submission.request.num_pipeline_patch = 3;
  submission.request.exchange = "all";
  CHECK(range_error(shared_cluster().run(submission).latents.value(), exact) <= kDegreesBound);
  submission.request.exchange = "stale";
  const double stale = range_error(shared_cluster().run(submission).latents.value(), exact);
  CHECK(stale > kDegreesBound);
  CHECK(stale < 0.3);
}

TEST_CASE("kill -9 of an actor leaves a picture that follows others as it is, to the bit") {
  if (lacks_made_fixtures()) return;
  Reference reference("controlnet");
  auto job = submission_of(reference, "sd15_two");
  job.parallelism = {.ulysses = 2};
  FaultCluster cluster(actors(2));
  const auto undisturbed = cluster.run(job);
  const auto result =
      cluster.struck(job, 2, [&](std::uint64_t) { kill(cluster.pids().at(1), SIGKILL); });
  CHECK(result.latents->data == undisturbed.latents->data);
}

TEST_CASE("ControlNets' weights in 8 bits are as many as planned, and change the picture little") {
  if (lacks_made_fixtures()) return;
  Reference reference("controlnet");
  auto job = submission_of(reference, "sd15_two");
  const auto whole = shared_cluster().run(job).latents.value();
  job.request.weight_dtype = "int8";
  const Foreseen foreseen(job);
  const auto small = shared_cluster().run(job);
  check_weights(nlohmann::json::parse(small.report), foreseen);
  const double error = range_error(small.latents.value(), whole);
  CHECK(error > 0);
  CHECK(error < 0.1);
}

TEST_CASE("what a ControlNet cannot be given is refused by name") {
  if (lacks_made_fixtures()) return;
  Reference reference("controlnet");
  const auto refused = [&](const char* name, const auto& change) {
    auto submission = submission_of(reference, name);
    change(submission.request);
    return message_of([&] { plan_of(submission); });
  };
  CHECK(has(refused("sd15_folder", [](auto& request) { request.control_images.clear(); }),
            "`control_images` is missing: StableDiffusionControlNetPipeline needs 1 picture"));
  CHECK(has(refused("sd15_two", [](auto& request) { request.control_images.pop_back(); }),
            "`control_scale` has 2 values"));
  CHECK(has(refused("sd15_folder", [](auto& request) { request.step_cache = "teacache"; }),
            "`step_cache` is teacache, but"));
  CHECK(has(refused("sd15_beside",
                    [](auto& request) { request.controlnets = {checkpoint("tiny-control-xl")}; }),
            "does not fit the number of the U-Net's"));
  CHECK(has(message_of([&] {
              auto model = spec::read_model_spec(checkpoint("tiny-flux"));
              spec::add_controlnet(model, checkpoint("tiny-control-edges"));
            }),
            "is a ControlNet, and FluxPipeline takes none"));
}
