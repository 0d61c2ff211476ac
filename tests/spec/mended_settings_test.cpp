#include <nlohmann/json.hpp>

#include "models/spec/model_spec.h"
#include "models/spec/pipelines.h"
#include "models/spec/scheduler_config.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

const std::filesystem::path kTinyFolders = TROUPE_SOURCE_DIR "/tests/fixtures";

/// A fixture's folder, with keys of one of its files changed; null takes a key away.
spec::ModelSpec changed(const std::string& folder, const std::string& file, const json& keys) {
  const Scratch scratch;
  const auto copy = scratch.path / folder;
  std::filesystem::copy(kTinyFolders / folder, copy, std::filesystem::copy_options::recursive);
  auto settings = json::parse(read_bytes(copy / file));
  settings.merge_patch(keys);
  write_bytes(copy / file, settings.dump());
  return spec::read_model_spec(copy);
}

const json& book() {
  static const json read = json::parse(read_bytes(kTinyFolders / "expected/pipelines.json"));
  return read;
}

spec::PipelineTask task_of(const json& item) {
  return item["pipeline"].get<std::string>().find("Inpaint") == std::string::npos
             ? spec::PipelineTask::generation
             : spec::PipelineTask::inpainting;
}

}  // namespace

TEST_CASE(
    "outdated settings of schedulers are what the constructors of diffusers' pipelines make") {
  REQUIRE(book()["schedulers"].size() > 30);
  for (const auto& item : book()["schedulers"]) {
    CAPTURE(item.dump());
    auto model = spec::read_model_spec(kTinyFolders / item["folder"].get<std::string>());
    model.scheduler.class_name = item["scheduler"];
    model.scheduler.config = item["config"].dump();
    const auto config = spec::scheduler_config_for(model.scheduler, item["sampler"], task_of(item));
    const auto& seen = item["seen"];
    if (seen.contains("steps_offset")) CHECK(config.steps_offset == seen["steps_offset"]);
    if (seen.contains("clip_sample")) CHECK(config.clip_sample == seen["clip_sample"]);
    if (seen.contains("skip_prk_steps")) CHECK(config.skip_prk_steps == seen["skip_prk_steps"]);
  }
}

TEST_CASE("what a request does not say is what the calls of diffusers' pipelines take") {
  const std::pair<const char*, spec::PipelineTask> tasks[] = {
      {"generation", spec::PipelineTask::generation},
      {"from_picture", spec::PipelineTask::from_picture},
      {"inpainting", spec::PipelineTask::inpainting}};
  CHECK(book()["calls"].size() == 8);
  for (const auto& [name, calls] : book()["calls"].items()) {
    CAPTURE(name);
    const auto& pipeline = spec::pipeline_of(name, "model_index.json");
    for (const auto& [word, task] : tasks) {
      CAPTURE(word);
      const auto& own = pipeline.defaults.of(task);
      if (!calls.contains(word)) {
        CHECK(own == pipeline.defaults.generation);
        continue;
      }
      const auto& call = calls[word];
      CHECK(own.steps == call["num_inference_steps"]);
      CHECK(own.guidance_scale == call["guidance_scale"]);
      if (call.contains("strength")) CHECK(own.strength == call["strength"]);
      if (call.contains("max_sequence_length"))
        CHECK(pipeline.text_tokens == call["max_sequence_length"]);
    }
  }
}

TEST_CASE("U-Nets of old versions are as large as diffusers' pipelines take them") {
  for (const auto& item : book()["unets"]) {
    CAPTURE(item.dump());
    const auto model = changed(item["folder"], "unet/config.json", item["config"]);
    CHECK(model.transformer.sample_size == item["seen"]);
    CHECK(model.transformer.unet()->sample_size == item["seen"]);
    CHECK(model.default_size() == item["seen"].get<int>() * model.vae.scale_factor());
  }
}

TEST_CASE("a VAE's shift counts where the pipeline takes it from latents") {
  for (const auto& [folder, shift] : book()["vae_shifts"].items()) {
    CAPTURE(folder);
    CHECK(changed(folder, "vae/config.json", {{"shift_factor", 0.25}}).vae.shift_factor == shift);
  }
}

TEST_CASE("a CLIP tokenizer's length is the pipelines' own, or left open, or refused by name") {
  const auto read = [](const json& length) {
    return changed("tiny-sd15", "tokenizer/tokenizer_config.json", {{"model_max_length", length}});
  };
  CHECK_NOTHROW(read(nullptr));
  CHECK_NOTHROW(read(1e30));
  const auto error = error_of([&] { read(64); });
  CAPTURE(error);
  CHECK(contains(error, "tokenizer/tokenizer_config.json: key \"model_max_length\" = 64"));
}

TEST_CASE("an encoder with fewer positions than prompts have tokens is refused by name") {
  for (const std::string folder : {"tiny-sd15", "tiny-hunyuan"}) {
    const auto error = error_of([&] {
      changed(folder, "text_encoder/config.json", {{"max_position_embeddings", 64}});
    });
    CAPTURE(error);
    CHECK(contains(error,
                   "text_encoder/config.json: key \"max_position_embeddings\" = 64 must be "
                   "at least 77, the tokens of the pipeline's prompts"));
  }
}
