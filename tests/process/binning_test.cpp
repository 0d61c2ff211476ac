#include <fstream>

#include "tests/process/support/compare.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

/// A folder like a checkpoint whose transformer is for another sample_size.
std::string with_sample_size(const Scratch& scratch, const std::string& name, int sample_size) {
  const fs::path from = checkpoint(name);
  const fs::path folder = scratch / (name + "-" + std::to_string(sample_size));
  if (fs::exists(folder)) return folder.string();
  fs::create_directories(folder / "transformer");
  for (const char* part : {"tokenizer", "text_encoder", "scheduler", "vae", "model_index.json"}) {
    fs::create_symlink(from / part, folder / part);
  }
  const char* weights = "transformer/diffusion_pytorch_model.safetensors";
  fs::create_symlink(from / weights, folder / weights);
  auto config = nlohmann::json::parse(std::ifstream(from / "transformer/config.json"));
  config["sample_size"] = sample_size;
  std::ofstream(folder / "transformer/config.json") << config.dump(1);
  return folder.string();
}

}  // namespace

TEST_CASE("binned pictures are diffusers' own, at the size asked for") {
  Reference reference("binning");
  const Scratch scratch;
  Worst levels;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    if (!name.starts_with("picture/")) continue;
    CAPTURE(name);
    auto submission = reference.submission(of, {.dp = 1, .cfg = 1, .pp = 2});
    submission.model = with_sample_size(scratch, of.at("checkpoint"), of.at("sample_size"));
    submission.request.resolution_binning = true;
    const auto result = shared_cluster().run(submission);
    REQUIRE(result.pictures.size() == of.at("n").get<std::size_t>());
    for (std::size_t i = 0; i < result.pictures.size(); ++i) {
      const auto picture = decode_png(result.pictures[i].png);
      CHECK(picture.shape == std::vector<std::int64_t>{of.at("height"), of.at("width"), 3});
      const int level = level_error(picture, picture_of(reference.bytes(of, "image"), i));
      CHECK(level <= 1);
      levels.see(level, name);
    }
    // Report and picture say both sizes.
    const auto told = nlohmann::json::parse(png_text(result.pictures[0].png, "troupe"));
    for (const auto& place : {nlohmann::json::parse(result.report).at("request"), told}) {
      for (const char* key : {"height", "width", "computed_height", "computed_width"}) {
        CHECK(place.at(key) == of.at(key));
      }
      CHECK(place.at("resolution_binning") == true);
    }
    CHECK(result.latents.value().shape.at(2) == of.at("computed_height").get<int>() / 8);
  }
  CHECK(levels.seen == 8);
  MESSAGE("binning: " << levels.seen << " pictures within " << levels.value << " levels ("
                      << levels.where << ")");
}

TEST_CASE("binning is refused where the model has no bins") {
  Reference reference("pipeline");
  auto submission = reference.submission(reference.find("plain"));
  submission.request.resolution_binning = true;
  const auto error = shared_cluster().refusal(submission);
  CAPTURE(error.what);
  CHECK(error.code == ErrorCode::bad_request);
  CHECK(error.what.find("sample_size is 16") != std::string::npos);
}

TEST_CASE("a cleaned caption draws what the clean caption draws") {
  Reference reference("pipeline");
  auto submission = reference.submission(reference.find("negative"));
  const auto plain = shared_cluster().run(submission).latents.value();
  const auto prompt = submission.request.prompts.at(0);
  submission.request.prompts = {"https://example.com/p <b>" + prompt + "</b> img_01.png"};
  submission.request.negative_prompt = "@someone <i>" + submission.request.negative_prompt.value();
  CHECK(range_error(shared_cluster().run(submission).latents.value(), plain) > 1e-3);
  submission.request.clean_caption = true;
  const auto cleaned = shared_cluster().run(submission);
  CHECK(cleaned.latents.value().data == plain.data);
  const auto told = nlohmann::json::parse(png_text(cleaned.pictures.at(0).png, "troupe"));
  CHECK(told.at("clean_caption") == true);
  CHECK(told.at("prompt") == submission.request.prompts.at(0));
}
