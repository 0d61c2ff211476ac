#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/journaled_controller.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// What a caller gives instead of what pipelines make, and latents as the result.

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

constexpr double kLatentBound = 1e-5;   // of the reference's range
constexpr double kDegreesBound = 1e-5;  // of the range of the single actor's latents

bool is_unet(const nlohmann::json& of) {
  return of.at("checkpoint") == "tiny-sdxl" || of.at("checkpoint") == "tiny-sd15";
}

std::vector<Parallelism> mixes_of(const nlohmann::json& of) {
  const bool guided = of.at("guidance").get<double>() > 1 && of.at("checkpoint") != "tiny-flux";
  const int cfg = guided ? 2 : 1;
  const int pictures = of.at("n").get<int>() * static_cast<int>(of.at("prompts").size());
  const int dp = std::min(pictures, 2);
  if (is_unet(of)) return {{.dp = dp, .cfg = cfg, .ring = 2}, {.dp = pictures, .ulysses = 2}};
  return {
      {.dp = dp, .cfg = cfg, .pp = 2}, {.dp = dp, .ulysses = 2, .tp = 2}, {.cfg = cfg, .ring = 3}};
}

/// The case, of which the latents alone are asked for.
Submission latents_of(Reference& reference, const nlohmann::json& of, Parallelism degrees = {}) {
  auto submission = reference.submission(of, degrees);
  submission.request.want_latents = false;
  submission.request.output_type = "latent";
  return submission;
}

/// A copy of a checkpoint in which those components' weights are not numbers.
std::string without_weights(const Scratch& scratch, const std::string& of,
                            const std::vector<std::string>& components) {
  namespace fs = std::filesystem;
  const std::string folder = scratch / "blind";
  fs::copy(fs::canonical(of), folder, fs::copy_options::recursive);
  for (const auto& component : components) {
    for (const auto& entry : fs::directory_iterator(folder + "/" + component)) {
      if (entry.path().extension() != ".safetensors") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      std::uint64_t header = 0;
      file.read(reinterpret_cast<char*>(&header), sizeof header);
      const auto data = static_cast<std::streamoff>(sizeof header + header);
      file.seekp(data);
      file << std::string(fs::file_size(entry.path()) - static_cast<std::size_t>(data), '\xff');
    }
  }
  return folder;
}

nlohmann::json report_of(const JobResult& result) {
  return nlohmann::json::parse(result.report);
}

/// Checks that each rank sent what its plan says, to the byte.
void check_traffic(const JobResult& result, const Submission& submission) {
  check_sent(report_of(result), Foreseen(submission));
}

}  // namespace

TEST_CASE("what a caller gives makes diffusers' latents, at any degrees, and nothing is decoded") {
  Reference reference("given");
  Worst theirs;
  Worst mixes;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto result = shared_cluster().run(latents_of(reference, of));
    CHECK(result.pictures.empty());
    REQUIRE(result.latents);
    const double error = range_error(*result.latents, reference.floats(of, "latents"));
    CHECK(error <= kLatentBound);
    theirs.see(error, name);
    for (const auto& mix : mixes_of(of)) {
      const auto where = name + " at " + name_of(mix);
      CAPTURE(where);
      const auto submission = latents_of(reference, of, mix);
      const auto many = shared_cluster().run(submission);
      const double between = range_error(*many.latents, *result.latents);
      check_traffic(many, submission);
      CHECK(between <= kDegreesBound);
      mixes.see(between, where);
    }
  }
  CHECK(theirs.seen == 37);
  MESSAGE(theirs.seen << " cases within " << theirs.value << " of diffusers (" << theirs.where
                      << "), " << mixes.seen << " mixes within " << mixes.value << " of one actor ("
                      << mixes.where << ")");
}

TEST_CASE(
    "progress tells the timestep of each step: those that a caller gives, as diffusers does") {
  Reference reference("given");
  for (const auto* name : {"times_pixart", "times_lcm"}) {
    CAPTURE(name);
    const auto& of = reference.find(name);
    const auto given = of.at("timesteps").get<std::vector<double>>();
    for (const auto& degrees : {Parallelism{}, mixes_of(of).front()}) {
      CAPTURE(name_of(degrees));
      std::mutex mutex;
      std::vector<std::optional<double>> told(given.size() + 1);
      shared_cluster().run(latents_of(reference, of, degrees), [&](const Progress& progress) {
        const std::lock_guard lock(mutex);
        told.at(static_cast<std::size_t>(progress.step)) = progress.timestep;
      });
      const std::lock_guard lock(mutex);
      CHECK_FALSE(told.front());
      for (std::size_t step = 0; step < given.size(); ++step)
        CHECK(told[step + 1] == given[step]);
    }
  }
}

TEST_CASE("neither text encoders nor decoder are read where both ends are cut off") {
  Reference reference("given");
  const auto& of = reference.find("embeds_sdxl");
  const Scratch scratch;
  auto submission = latents_of(reference, of);
  submission.model =
      without_weights(scratch, submission.model, {"vae", "text_encoder", "text_encoder_2"});
  const auto result = shared_cluster().run(submission);
  CHECK(range_error(result.latents.value(), reference.floats(of, "latents")) <= kLatentBound);
  const auto report = report_of(result);
  CHECK(report["request"]["output_type"] == "latent");
  CHECK(report["request"]["prompt_embeds"] == true);
  CHECK(report["plan"]["memory"][0]["vae"] == 0);
  CHECK(report["plan"]["memory"][0]["text"] == 0);

  submission.request.output_type = "picture";
  CHECK(has(shared_cluster().refusal(submission).what, "vae"));
  submission.request.output_type = "latent";
  submission.request.prompt_embeds.clear();
  submission.request.prompts = {"a cat"};
  CHECK(has(shared_cluster().refusal(submission).what, "text_encoder"));
}

TEST_CASE("beside given prompts the negative text alone is encoded, each different one once") {
  Reference reference("given");
  const auto& of = reference.find("negative_sd3");
  auto submission = latents_of(reference, of, {.cfg = 2, .pp = 2});
  submission.request.negative_prompt = "a dog, a cart";
  const auto plan = plan_of(submission);
  CHECK(plan.encodes_text());
  const auto encoders = spec::read_model_spec(submission.model).text_encoders.size();
  const auto one = report_of(shared_cluster().run(submission));
  CHECK(one["prompts"]["encoded"] == encoders);
  submission.request.negative_prompt.reset();
  submission.request.negative_prompts = {"a dog, a cart", "a horse, a cart"};
  const auto each = report_of(shared_cluster().run(submission));
  CHECK(each["prompts"]["encoded"] == encoders);
  CHECK(each["prompts"]["from_cache"] == encoders);
  // SDXL's are zeros where none is given at all; an empty one is encoded.
  auto zeros = latents_of(reference, reference.find("negative_sdxl"));
  zeros.request.negative_prompt = "";
  CHECK(plan_of(zeros).encodes_text());
  zeros.request.negative_prompt.reset();
  CHECK_FALSE(plan_of(zeros).encodes_text());
  CHECK_FALSE(report_of(shared_cluster().run(zeros)).contains("prompts"));
}

TEST_CASE("latents alone: previews come all the same, and what needs a decoder is refused") {
  Reference reference("given");
  auto submission = latents_of(reference, reference.find("seeds_pixart"));
  submission.request.progress_interval = 1;
  submission.request.progress_content = "preview";
  std::atomic<int> previews = 0;
  const auto result = shared_cluster().run(
      submission, [&](const Progress& progress) { previews += !progress.preview_png.empty(); });
  CHECK(previews > 0);
  CHECK(result.pictures.empty());
  submission.parallelism = {.pp = 2, .vae = 2};
  CHECK(shared_cluster().refusal(submission).what ==
        "[plan] `vae` is 2, but with `output_type` latent nothing is decoded");
}

TEST_CASE("each picture of several seeds is the one that it is alone, and its file says so") {
  Reference reference("given");
  for (const char* name : {"seeds_sd15", "seeds_pixart"}) {
    const auto& of = reference.find(name);
    CAPTURE(name);
    auto together = reference.submission(of);
    together.parallelism.dp = 2;
    const auto result = shared_cluster().run(together);
    const auto& request = together.request;
    const auto said = report_of(result)["request"];
    CHECK(said["seeds"] == nlohmann::json(request.picture_seeds));
    CHECK(said["negative_prompts"].size() == 4);
    const auto& all = *result.latents;
    const auto size = all.data.size() / 4;
    for (std::size_t picture = 0; picture < 4; ++picture) {
      CAPTURE(picture);
      auto alone = reference.submission(of);
      alone.request.prompts = {request.prompts[picture / 2]};
      alone.request.images_per_prompt = 1;
      alone.request.picture_seeds.clear();
      alone.request.seed = request.picture_seeds[picture];
      alone.request.negative_prompts.clear();
      alone.request.negative_prompt = request.negative_prompts[picture / 2];
      const auto one = shared_cluster().run(alone);
      Latents own{one.latents->shape, {}};
      own.data.assign(all.data.begin() + static_cast<std::ptrdiff_t>(picture * size),
                      all.data.begin() + static_cast<std::ptrdiff_t>((picture + 1) * size));
      CHECK(range_error(own, *one.latents) <= kDegreesBound);
      CHECK(png_text(result.pictures[picture].png, "parameters") ==
            png_text(one.pictures[0].png, "parameters"));
      const auto text = nlohmann::json::parse(png_text(result.pictures[picture].png, "troupe"));
      CHECK(text["seed"] == request.picture_seeds[picture]);
      CHECK(text["negative_prompt"] == request.negative_prompts[picture / 2]);
      CHECK(text["image"] == 0);
      CHECK(text["pictures"] == 1);
    }
  }
}

TEST_CASE("what is given and does not fit is refused by its name, before anything loads") {
  Reference reference("given");
  struct Wrong {
    const char* name;
    std::function<void(ImageRequest&)> change;
    const char* said;
  };
  const Wrong all[] = {
      {"embeds_sigma", [](auto& r) { r.prompt_embeds.erase("prompt_attention_mask"); },
       "prompt_attention_mask is missing from `prompt_embeds`"},
      {"embeds_sigma", [](auto& r) { r.prompt_embeds.erase("negative_prompt_embeds"); },
       "negative_prompt_embeds is missing from `prompt_embeds`: these have some of the negative "
       "text, so they need all of it"},
      {"embeds_sdxl",
       [](auto& r) {
         for (const char* name : {"negative_prompt_embeds", "negative_pooled_prompt_embeds"})
           r.prompt_embeds.erase(name);
         r.negative_prompt = "a cat";
       },
       "`prompt_embeds` are of 93 tokens, but the negative text, which is to be encoded, of 77"},
      {"embeds_sd3",
       [](auto& r) {
         r.prompt_embeds["prompt_embeds"].shape = {2, 24, 89};
       },
       "prompt_embeds has the shape [2, 24, 89]: this model takes [2, tokens, 24]"},
      {"embeds_flux",
       [](auto& r) {
         r.prompt_embeds["negative_prompt_embeds"] = r.prompt_embeds["prompt_embeds"];
       },
       "`prompt_embeds` have a tensor \"negative_prompt_embeds\": FluxPipeline takes "
       "pooled_prompt_embeds, prompt_embeds"},
      {"embeds_hunyuan",
       [](auto& r) {
         r.prompt_embeds["prompt_embeds"].shape = {2, 16, 77};
       },
       "this model takes [2, 77, 16]"},
      {"embeds_sigma", [](auto& r) { r.prompt_embeds["prompt_embeds"].data[3] = NAN; },
       "prompt_embeds is not finite at element 3"},
      {"embeds_sigma", [](auto& r) { r.prompt_embeds["prompt_embeds"].data.pop_back(); },
       "prompt_embeds of shape [2, 30, 24] holds 1439 values"},
      {"embeds_sigma",
       [](auto& r) {
         r.prompts = {"a cat", ""};
       },
       "`prompts` and `prompt_embeds` do not go together"},
      {"embeds_sigma", [](auto& r) { r.negative_prompt = "a cat"; },
       "`negative_prompt` does not go with `prompt_embeds` that have the negative text, or need "
       "none"},
      {"embeds_flux", [](auto& r) { r.negative_prompt = "a cat"; },
       "`negative_prompt` does not go with `prompt_embeds` that have the negative text, or need "
       "none"},
      {"embeds_sigma", [](auto& r) { r.max_sequence_length = 12; },
       "`max_sequence_length` is 12, but `prompt_embeds` are of 30 tokens"},
      {"embeds_sigma", [](auto& r) { r.prompt_embeds["prompt_attention_mask"].data[0] = 0; },
       "prompt_attention_mask is not ones, at least one, and then zeros in each of its rows"},
      {"seeds_sd3", [](auto& r) { r.picture_seeds.pop_back(); },
       "`picture_seeds` has 3 values, but there are 4 pictures (prompts × `images_per_prompt`)"},
      {"seeds_sd3", [](auto& r) { r.negative_prompts.push_back("x"); },
       "`negative_prompts` has 3 texts, but there are 2 prompts and 4 pictures"},
      {"seeds_sd3", [](auto& r) { r.negative_prompt = "x"; },
       "`negative_prompt` and `negative_prompts` do not go together"},
      {"seeds_sd3", [](auto& r) { r.eta = 0.5; }, "eta is 0.5, but flow-euler has none"},
      {"seeds_sd3", [](auto& r) { r.eta = 1.5; }, "`eta` is 1.5: a number from 0 to 1 is needed"},
      {"sigmas_sd3",
       [](auto& r) {
         r.timesteps = {3, 2};
       },
       "`timesteps` and `sigmas` do not go together"},
      {"sigmas_sd3",
       [](auto& r) {
         r.sigmas = {0.5, 0.7};
       },
       "sigmas have 0.7 after 0.5: they must fall"},
      {"sigmas_sd3",
       [](auto& r) {
         r.sigmas = {1.2, 0.7};
       },
       "sigmas have 1.2: numbers from 1e-06 to 1 are needed"},
      {"eta_hunyuan",
       [](auto& r) {
         r.timesteps = {900, 5};
       },
       "timesteps are given, but ddim goes through its own alone"},
      {"eta_hunyuan",
       [](auto& r) {
         r.sigmas = {0.9, 0.5};
       },
       "sigmas are given, but ddim takes none: euler and flow-euler do"},
      {"times_pixart",
       [](auto& r) {
         r.timesteps = {900.5, 5};
       },
       "timesteps have 900.5: dpmsolver++ takes whole numbers"},
      {"times_pixart",
       [](auto& r) {
         r.timesteps = {1000, 5};
       },
       "timesteps have 1000: numbers from 0 to 999 are needed"},
  };
  for (const auto& wrong : all) {
    CAPTURE(wrong.said);
    auto submission = latents_of(reference, reference.find(wrong.name));
    wrong.change(submission.request);
    const auto error = shared_cluster().refusal(submission);
    INFO(error.what);
    CHECK(has(error.what, wrong.said));
  }
}

TEST_CASE("a picture to begin with and seeds for each picture") {
  Reference reference("init_image");
  const auto& of = reference.find("sdxl_euler-ancestral");
  auto submission = latents_of(reference, of);
  submission.request.sampler = of.at("sampler");
  submission.request.prompts = {"a red circle", "a tree"};
  submission.request.picture_seeds = {5, 9};
  auto both = submission;
  both.parallelism = {.dp = 2, .ring = 2, .vae = 2};
  const auto together = shared_cluster().run(submission).latents.value();
  const auto shared = shared_cluster().run(both);
  CHECK(range_error(*shared.latents, together) <= kDegreesBound);
  check_traffic(shared, both);
  for (std::size_t picture = 0; picture < 2; ++picture) {
    auto alone = submission;
    alone.request.prompts = {submission.request.prompts[picture]};
    alone.request.seed = submission.request.picture_seeds[picture];
    alone.request.picture_seeds.clear();
    const auto one = shared_cluster().run(alone).latents.value();
    Latents own{one.shape, {}};
    const auto size = static_cast<std::ptrdiff_t>(one.data.size());
    const auto first = together.data.begin() + static_cast<std::ptrdiff_t>(picture) * size;
    own.data.assign(first, first + size);
    CHECK(range_error(own, one) <= kDegreesBound);
  }
}

TEST_CASE("jobs that compute as one keep the seeds and negative prompts of single pictures") {
  auto options = actors(2);
  options.max_jobs_together = 1;  // so that there is a queue
  FaultCluster cluster(options);
  Reference reference("given");
  std::vector<Submission> jobs(2, reference.submission(reference.find("seeds_pixart")));
  jobs[1].request.prompts = {"a blue square to the left of a tree", ""};
  jobs[1].request.picture_seeds = {21, 22, 23, 24};
  jobs[1].request.negative_prompts = {"a cat", "", "a dog", "a black dog"};
  std::vector<JobResult> alone;
  for (auto& job : jobs) {
    job.parallelism.dp = 2;
    alone.push_back(cluster.run(job));
  }
  auto blocker = tiny_job();
  blocker.parallelism.pp = 2;
  cluster.hold(0, {.step = 1});  // it does not end before the others are here
  const auto first = cluster.submit(blocker);
  cluster.held(0);
  std::vector<std::uint64_t> ids;
  for (auto job : jobs) {
    job.may_batch = true;
    ids.push_back(cluster.submit(job));
  }
  if (const auto gone = cluster.client().cancel(first); !gone) FAIL(gone.error().what);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    CAPTURE(i);
    const auto result = cluster.client().wait(ids[i], 300s);
    if (!result) FAIL(result.error().what);
    CHECK(report_of(result.value())["batch"]["pictures"] == 8);
    CHECK(report_of(result.value())["request"]["seeds"] ==
          nlohmann::json(jobs[i].request.picture_seeds));
    CHECK(range_error(*result.value().latents, *alone[i].latents) <= kDegreesBound);
    REQUIRE(result.value().pictures.size() == 4);
    for (std::size_t picture = 0; picture < 4; ++picture) {
      CHECK(png_text(result.value().pictures[picture].png, "parameters") ==
            png_text(alone[i].pictures[picture].png, "parameters"));
    }
  }
}

TEST_CASE("kill -9: a job of prompt embeds and seeds for each picture ends bit-identical") {
  FaultCluster cluster(actors(3));
  Reference reference("given");
  auto submission = latents_of(reference, reference.find("embeds_sigma"), {.cfg = 2});
  submission.request.steps = 24;
  submission.request.sampler = "ddim";
  submission.request.eta = 0.5;
  submission.request.picture_seeds = {1, 2, 3, 4};
  const auto undisturbed = cluster.run(submission);
  const auto result = cluster.struck(submission, 20, [&](std::uint64_t) {
    kill(cluster.pids().at(0), SIGKILL);
    kill(cluster.pids().at(1), SIGKILL);
  });
  CHECK(result.latents->data == undisturbed.latents->data);
}

TEST_CASE("kill -9 of the controller: prompt embeds are in the journal") {
  JournaledController controller;
  REQUIRE(controller.ready());
  Reference reference("given");
  auto submission = latents_of(reference, reference.find("embeds_sigma"));
  submission.request.steps = 20;
  auto client = controller.client();
  const auto whole = client.submit(submission);
  REQUIRE(whole);
  const auto undisturbed = client.wait(whole.value(), 300s);
  REQUIRE(undisturbed);
  auto inspector = controller.inspector();
  hold_actor(inspector, 0, {.step = 5});
  const auto job = client.submit(submission);
  REQUIRE(job);
  held_actor(client, 0);
  controller.blow();
  const auto result = client.wait(job.value(), 300s);
  if (!result) FAIL(result.error().what);
  CHECK(result.value().latents->data == undisturbed.value().latents->data);
  CHECK(report_of(result.value())["recoveries"].size() == 1);
  controller.kill();
}
