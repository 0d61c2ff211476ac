#include <signal.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/img2img.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/process/support/tensors.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

// What is around a picture: LoRAs, a picture to begin with, guidance rescale.

using namespace troupe;
using namespace troupe::testing;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

constexpr double kLatentBound = 1e-5;
constexpr double kDegreesBound = 1e-5;

bool is_unet(const nlohmann::json& of) {
  return of.at("checkpoint") == "tiny-sdxl" || of.at("checkpoint") == "tiny-sd15";
}

/// 2 where the case has branches that actors can share.
int branches_of(const nlohmann::json& of) {
  return of.at("guidance").get<double>() > 1 && of.at("checkpoint") != "tiny-flux" ? 2 : 1;
}

/// Degrees that the family can be split by.
std::vector<Parallelism> mixes_of(const nlohmann::json& of) {
  const int cfg = branches_of(of);
  if (is_unet(of)) return {{.ulysses = 2}, {.cfg = cfg, .ring = 2}};
  return {
      {.pp = 2}, {.tp = 2}, {.cfg = cfg, .ulysses = 2}, {.pp = 2, .ring = 2, .tp = 2, .vae = 2}};
}

struct Way {
  std::string method, kv;
  Parallelism degrees;
};

/// Returns every method, by patches with one K,V or the other in turn; with one more picture per
/// prompt than the case has, so that replicas have some.
std::vector<Way> ways_of(const nlohmann::json& of, bool odd) {
  const int cfg = branches_of(of);
  if (is_unet(of))
    return {{"exact", "stale", {.dp = 2, .ring = 2}},
            {"distrifusion", "stale", {.dp = 2, .ring = 3}}};
  const Way exact{"exact", "stale", {.dp = 2, .pp = 2}};
  if (odd)
    return {exact,
            {"pipefusion", "predict", {.cfg = cfg, .pp = 2, .ring = 2}},
            {"distrifusion", "stale", {.cfg = cfg, .pp = 2, .ulysses = 2}}};
  return {exact,
          {"pipefusion", "stale", {.dp = 2, .pp = 2, .ulysses = 2}},
          {"distrifusion", "predict", {.dp = 2, .tp = 2}}};
}

void equals_diffusers_at_any_degrees(const std::string& part) {
  Reference reference(part);
  Worst theirs;
  Worst mixes;
  bool odd = false;
  for (const auto& of : reference.cases()) {
    odd = !odd;
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto one = shared_cluster().run(submission_of(reference, of)).latents.value();
    const double error = range_error(one, reference.floats(of, "latents"));
    CHECK(error <= kLatentBound);
    theirs.see(error, name);
    for (const auto& mix : mixes_of(of)) {
      CAPTURE(name_of(mix));
      const auto many = shared_cluster().run(submission_of(reference, of, mix)).latents.value();
      const double between = range_error(many, one);
      CHECK(between <= kDegreesBound);
      mixes.see(between, name + " at " + name_of(mix));
    }
    for (const auto& way : ways_of(of, odd)) {
      const auto where = name + " " + way.method + " " + way.kv + " at " + name_of(way.degrees);
      CAPTURE(where);
      auto several = submission_of(reference, of);
      ++several.request.images_per_prompt;
      several.request.method = way.method;
      several.request.kv = way.kv;
      several.request.num_pipeline_patch = way.method == "exact" ? 1 : 3;
      const auto alone = shared_cluster().run(several).latents.value();
      several.parallelism = way.degrees;
      const double between = range_error(shared_cluster().run(several).latents.value(), alone);
      CHECK(between <= kDegreesBound);
      mixes.see(between, where);
    }
  }
  MESSAGE(part << ": " << theirs.seen << " cases within " << theirs.value << " of diffusers ("
               << theirs.where << "), " << mixes.seen << " mixes within " << mixes.value
               << " of one actor (" << mixes.where << ")");
}

nlohmann::json request_of(const JobResult& result) {
  return nlohmann::json::parse(result.report)["request"];
}

}  // namespace

TEST_CASE("LoRAs in both namings make diffusers' pictures, at any degrees") {
  equals_diffusers_at_any_degrees("lora");
}

TEST_CASE("textual inversions make diffusers' pictures, at any degrees") {
  equals_diffusers_at_any_degrees("textual_inversion");
}

TEST_CASE("a folder that has learned words itself makes diffusers' pictures") {
  Reference reference("textual_inversion");
  const auto& of = reference.find("several");
  auto submission = submission_of(reference, of);
  submission.request.embeddings.clear();
  const Scratch scratch;
  const fs::path folder = scratch / "model";
  fs::copy(submission.model, folder, fs::copy_options::recursive);
  submission.model = folder;
  const auto tokenizer = folder / "tokenizer/tokenizer.json";
  auto tokens = nlohmann::json::parse(read_all(tokenizer));
  tokens.update(of.at("files").at("tokenizer.json"));
  std::ofstream(tokenizer) << tokens.dump();
  const auto rows = reference.floats(of, "rows");
  const auto weights = folder / "text_encoder/model.safetensors";
  auto tensors = TensorFile(weights).behind("");
  for (auto& [name, tensor] : tensors) {
    if (!name.ends_with("token_embedding.weight")) continue;
    tensor.data.insert(tensor.data.end(), rows.data.begin(), rows.data.end());
    tensor.shape[0] += rows.shape[0];
    auto config = nlohmann::json::parse(read_all(folder / "text_encoder/config.json"));
    config["vocab_size"] = tensor.shape[0];
    std::ofstream(folder / "text_encoder/config.json") << config.dump();
  }
  fs::remove(weights);
  write_tensors(weights, tensors);
  const auto found = shared_cluster().run(submission).latents.value();
  CHECK(range_error(found, reference.floats(of, "latents")) <= kLatentBound);
}

TEST_CASE("the words of a job are its own, beside others and after them") {
  Reference reference("textual_inversion");
  const auto& of = reference.find("several");
  const auto with = submission_of(reference, of);
  auto plain = with;
  plain.request.embeddings.clear();
  auto other = with;
  other.request.embeddings[0].token = "circle";
  const auto other_alone = shared_cluster().run(other).latents.value();
  CHECK(range_error(other_alone, reference.floats(of, "latents")) > 1e-3);
  CHECK(range_error(other_alone, reference.floats(of, "plain")) > 1e-3);
  std::vector<std::pair<std::uint64_t, Latents>> jobs;
  for (int round = 0; round < 2; ++round) {
    for (const auto& [submission, expected] : {std::pair{with, reference.floats(of, "latents")},
                                               {plain, reference.floats(of, "plain")},
                                               {other, other_alone}}) {
      auto one = submission;
      one.may_batch = round == 1;
      const auto job = shared_cluster().client().submit(one);
      if (!job) FAIL(job.error().what);
      jobs.emplace_back(job.value(), expected);
    }
  }
  for (const auto& [job, expected] : jobs) {
    const auto result = shared_cluster().client().wait(job, 600s);
    if (!result) FAIL(result.error().what);
    CHECK(range_error(result.value().latents.value(), expected) <= kLatentBound);
  }
}

TEST_CASE(
    "a report names a textual inversion, a picture its file's name, and a replaced one is read") {
  Reference reference("textual_inversion");
  auto submission = submission_of(reference, reference.find("single"));
  const Scratch folder;
  const auto file = folder / "own.safetensors";
  fs::copy_file(kFixtures + "embeddings/shiny.safetensors", file);
  submission.request.embeddings = {{file, ""}};
  const auto result = shared_cluster().run(submission);
  const auto first = result.latents.value();
  const nlohmann::json said = {{"file", file}, {"token", "shiny"}};
  CHECK(request_of(result)["embeddings"] == nlohmann::json::array({said}));
  const auto text = png_text(result.pictures[0].png, "troupe");
  CHECK(has(text, "\"own.safetensors\""));
  CHECK(!has(text, folder.path.string()));
  fs::remove(file);
  fs::copy_file(kFixtures + "embeddings/webui.safetensors", file);
  submission.request.embeddings[0].token = "shiny";
  CHECK(range_error(shared_cluster().run(submission).latents.value(), first) > 1e-3);

  submission.request.embeddings = {{folder / "none.safetensors", ""}};
  const auto error = shared_cluster().refusal(submission);
  CHECK(error.code == ErrorCode::bad_request);
  CHECK(has(error.what, "none.safetensors"));
  submission.request.embeddings = {{kFixtures + "embeddings/style.safetensors", ""}};
  CHECK(has(shared_cluster().refusal(submission).what,
            "style.safetensors: tensor \"clip_g\" is for a second text encoder"));
}

TEST_CASE("pictures that begin with one are diffusers', at any degrees") {
  equals_diffusers_at_any_degrees("init_image");
}

TEST_CASE("what a mask keeps and what is painted beside it are diffusers', at any degrees") {
  equals_diffusers_at_any_degrees("inpaint");
}

TEST_CASE("families without such a pipeline begin with a picture by the same rules") {
  Reference reference("lora");
  for (const char* name : {"pixart", "hunyuan"}) {
    CAPTURE(name);
    auto submission = submission_of(reference, reference.find(name));
    const auto plain = shared_cluster().run(submission).latents.value();
    submission.request.init_image = read_all(kFixtures + "init/picture.png");
    submission.request.steps = 8;
    Latents before;
    const auto mask = read_all(kFixtures + "init/mask.png");
    for (const auto& [strength, over] :
         {std::pair<double, std::string>{0.3, ""}, {0.9, ""}, {0.9, mask}}) {
      submission.request.strength = strength;
      submission.request.mask_image = over;
      submission.parallelism = {};
      const auto one = shared_cluster().run(submission).latents.value();
      CHECK(range_error(one, plain) > 1e-2);
      for (const Parallelism& mix :
           {Parallelism{.pp = 2, .tp = 2}, Parallelism{.cfg = 2, .ulysses = 3, .vae = 2}}) {
        submission.parallelism = mix;
        CHECK(range_error(shared_cluster().run(submission).latents.value(), one) <= kDegreesBound);
      }
      if (!before.data.empty()) CHECK(range_error(one, before) > 1e-2);
      before = one;
    }
  }
}

TEST_CASE("guidance rescale is diffusers', at any degrees") {
  equals_diffusers_at_any_degrees("guidance_rescale");
}

TEST_CASE("another set of LoRAs, another scale and a replaced file are other weights") {
  Reference reference("lora");
  const auto& of = reference.find("flux");
  auto submission = submission_of(reference, of);
  const auto with = shared_cluster().run(submission).latents.value();
  auto plain = submission;
  plain.request.loras.clear();
  CHECK(range_error(shared_cluster().run(plain).latents.value(), reference.floats(of, "plain")) <=
        kLatentBound);
  auto half = submission;
  half.request.loras[0].scale = 0.2;
  const auto weaker = shared_cluster().run(half).latents.value();
  CHECK(range_error(weaker, with) > 1e-3);
  CHECK(shared_cluster().run(submission).latents->data == with.data);

  const Scratch folder;
  const auto file = folder / "own.safetensors";
  std::filesystem::copy_file(kFixtures + "lora/flux.safetensors", file);
  submission.request.loras[0].path = file;
  const auto result = shared_cluster().run(submission);
  CHECK(result.latents->data == with.data);
  CHECK(request_of(result)["loras"][0]["file"] == file);
  CHECK(request_of(result)["loras"][0]["scale"] == 0.7);
  const auto text = png_text(result.pictures[0].png, "troupe");
  CHECK(has(text, "\"own.safetensors\""));
  CHECK(!has(text, folder.path.string()));
  std::filesystem::remove(file);
  std::filesystem::copy_file(kFixtures + "lora/flux_kohya.safetensors", file);
  CHECK(range_error(shared_cluster().run(submission).latents.value(), with) > 1e-3);
}

TEST_CASE("LoRAs that do not fit are refused with file and tensor") {
  Reference reference("lora");
  auto submission = submission_of(reference, reference.find("flux"));
  const auto refusal_of = [&](const std::string& path) {
    submission.request.loras = {{path, 1}};
    const auto error = shared_cluster().refusal(submission);
    CHECK(error.code == ErrorCode::bad_request);
    CHECK(error.what.find('\n') == std::string::npos);
    return error.what;
  };
  CHECK(has(refusal_of("/nowhere/x.safetensors"), "/nowhere/x.safetensors: no such file"));
  const auto other = refusal_of(kFixtures + "lora/sd3.safetensors");
  CHECK(has(other, "sd3.safetensors: tensor \""));
  submission.request.loras = {{kFixtures + "lora/flux.safetensors", 1e9}};
  CHECK(has(shared_cluster().refusal(submission).what, "scale"));

  // Values are seen where they are used.
  const Scratch folder;
  auto bytes = read_all(kFixtures + "lora/flux.safetensors");
  for (std::size_t i = bytes.size() - 4; i < bytes.size(); ++i)
    bytes[i] = '\xff';
  submission.request.loras = {{folder.file("nan.safetensors", bytes).string(), 1}};
  const auto error = shared_cluster().refusal(submission);
  CHECK(has(error.what, "nan.safetensors: tensor \""));
  CHECK(has(error.what, "nan"));
  CHECK(has(error.what, "] is "));
}

TEST_CASE("a picture to begin with is refused where it cannot be one") {
  Reference reference("init_image");
  auto submission = submission_of(reference, reference.find("sd3"));
  const auto png = submission.request.init_image;
  submission.request.init_image = "BM and so on";
  CHECK(has(shared_cluster().refusal(submission).what,
            "init_image is a BMP: PNG, JPEG and WebP are taken"));
  submission.request.init_image = png.substr(0, png.size() / 2);
  CHECK(has(shared_cluster().refusal(submission).what, "init_image is cut off: its IDAT chunk"));
  submission.request.init_image = png;
  submission.request.strength = 0;
  CHECK(has(shared_cluster().refusal(submission).what, "of 6 steps none is left"));
  submission.request.strength = 1.5;
  CHECK(has(shared_cluster().refusal(submission).what, "`strength` is 1.5"));
  submission.request.strength = 0.6;
  submission.request.guidance_rescale = 0.5;
  CHECK(has(shared_cluster().refusal(submission).what, "StableDiffusion3Pipeline has none"));
  submission.request.guidance_rescale = 0;
  const auto result = shared_cluster().run(submission);
  const auto said = request_of(result);
  CHECK(said["steps"] == 6);
  CHECK(said["skipped_steps"] == 2);
  CHECK(said["strength"] == 0.6);
  CHECK(said["init_image"] == true);
  CHECK(has(png_text(result.pictures[0].png, "parameters"), "Denoising strength: 0.6"));
}

TEST_CASE("pictures with seeds of their own keep under a mask what each keeps alone") {
  Reference reference("inpaint");
  auto submission = submission_of(reference, reference.find("sd15_all_noise"), {.dp = 2});
  submission.request.strength = 0.6;
  submission.request.picture_seeds = {5, 9};
  const auto both = shared_cluster().run(submission).latents.value();
  submission.parallelism = {};
  submission.request.images_per_prompt = 1;
  auto own = both.data.begin();
  for (const std::uint64_t seed : std::exchange(submission.request.picture_seeds, {})) {
    submission.request.seed = seed;
    const auto alone = shared_cluster().run(submission).latents.value();
    const auto end = own + static_cast<std::ptrdiff_t>(alone.data.size());
    CHECK(range_error({.shape = alone.shape, .data = {own, end}}, alone) <= kDegreesBound);
    own = end;
  }
  CHECK(own == both.data.end());
}

TEST_CASE("a mask is refused where it cannot be one") {
  Reference reference("inpaint");
  auto submission = submission_of(reference, reference.find("sd15"));
  const auto mask = submission.request.mask_image;
  const auto refusal = [&](const std::string& bytes) {
    submission.request.mask_image = bytes;
    return shared_cluster().refusal(submission).what;
  };
  CHECK(has(refusal("GIF89a"), "mask_image is a GIF: PNG, JPEG and WebP are taken"));
  CHECK(has(refusal(mask.substr(0, mask.size() / 2)), "mask_image is cut off: its IDAT chunk"));
  submission.request.init_image.clear();
  CHECK(has(refusal(mask), "`mask_image` needs `init_image`"));
  submission = submission_of(reference, reference.find("sd15"));
  CHECK(request_of(shared_cluster().run(submission))["mask_image"] == true);
}

TEST_CASE("kill -9 of a job that began with a picture, before its first boundary and after it") {
  FaultCluster cluster(actors(3));
  Reference reference("init_image");
  auto submission = submission_of(reference, reference.find("sd3"), {.pp = 2});
  submission.request.loras = {{kFixtures + "lora/sd3.safetensors", 0.5}};
  submission.request.steps = 16;
  submission.request.strength = 0.5;
  const auto mask = read_all(kFixtures + "init/mask.png");
  for (const auto& [early, over] :
       {std::pair<bool, std::string>{true, ""}, {false, ""}, {false, mask}}) {
    CAPTURE(early);
    CAPTURE(over.size());
    submission.request.mask_image = over;
    const auto undisturbed = cluster.run(submission);
    const auto restarts = cluster.restarts();
    std::vector<std::uint32_t> places;
    const auto report = nlohmann::json::parse(undisturbed.report);
    for (const auto& actor : report["actors"])
      places.push_back(actor["actor"]);
    cluster.hold(places.at(0), early ? HoldAt{"text"} : HoldAt{.step = 5});
    const auto job = cluster.submit(submission);
    cluster.held(places.at(0));
    if (!early) REQUIRE(cluster.keeps(job, 5));
    const auto pids = cluster.pids();
    kill(pids.at(places.at(0)), SIGKILL);
    kill(pids.at(places.at(1)), SIGKILL);
    const auto result = cluster.client().wait(job, 600s);
    if (!result) FAIL(result.error().what);
    CHECK(result.value().latents->data == undisturbed.latents->data);
    const auto recoveries = nlohmann::json::parse(result.value().report)["recoveries"];
    REQUIRE(recoveries.size() >= 1);
    CHECK(recoveries[0]["step"] == (early ? 0 : 5));
    REQUIRE(eventually(kPatience, [&] { return cluster.restarts() >= restarts + 2; }));
    REQUIRE(cluster.whole());
  }
}
