#include <random>

#include "tests/process/support/compare.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kPixArtLatentBound = 1e-4;  // of the reference's range
constexpr int kPixArtLevelBound = 1;         // of 255

Latents random_latents(std::vector<std::int64_t> shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  Latents latents;
  std::int64_t count = 1;
  for (const auto extent : shape)
    count *= extent;
  latents.shape = std::move(shape);
  for (std::int64_t i = 0; i < count; ++i)
    latents.data.push_back(normal(generator));
  return latents;
}

Submission plain(Reference& reference) {
  return reference.submission(reference.find("plain"));
}

}  // namespace

TEST_CASE("one actor makes diffusers' pictures") {
  Reference reference("pipeline");
  Worst latents;
  Worst levels;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto result = shared_cluster().run(reference.submission(of));
    REQUIRE(result.latents);
    const double error = range_error(*result.latents, reference.floats(of, "latents"));
    CHECK(error <= kPixArtLatentBound);
    latents.see(error, name);
    const auto pictures = of.at("prompts").size() * of.at("n").get<std::size_t>();
    REQUIRE(result.pictures.size() == pictures);
    for (std::size_t i = 0; i < pictures; ++i) {
      const auto picture = decode_png(result.pictures[i].png);
      CHECK(picture.shape == std::vector<std::int64_t>{of.at("height"), of.at("width"), 3});
      if (!of.at("image").get<bool>()) continue;
      const int level = level_error(picture, picture_of(reference.bytes(of, "image"), i));
      CHECK(level <= kPixArtLevelBound);
      levels.see(level, name);
    }
  }
  CHECK(levels.seen >= 10);
  MESSAGE("pipeline: " << latents.seen << " cases, latents within " << latents.value
                       << " of range (" << latents.where << "), " << levels.seen
                       << " pictures within " << levels.value << " levels (" << levels.where
                       << ")");
}

TEST_CASE("the demo checkpoint makes diffusers' pictures") {
  Reference reference("demo");
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto result = shared_cluster().run(reference.submission(of));
    const double error = range_error(result.latents.value(), reference.floats(of, "latents"));
    CHECK(error <= kPixArtLatentBound);
    const auto expected = read_png(std::string(TROUPE_SOURCE_DIR "/tests/fixtures/expected/") +
                                   of.at("png").get<std::string>());
    const int level = level_error(decode_png(result.pictures.at(0).png), expected);
    CHECK(level <= kPixArtLevelBound);
    MESSAGE("demo " << name << ": latents within " << error << " of range, picture within " << level
                    << " levels");
  }
}

TEST_CASE("a sampler asked for by name replaces the checkpoint's own") {
  Reference reference("pipeline");
  const std::pair<std::string, std::string> samplers[] = {{"euler", "euler"},
                                                          {"plain", "dpmsolver++"}};
  for (const auto& [name, sampler] : samplers) {
    CAPTURE(name);
    const auto& of = reference.find(name);
    auto submission = reference.submission(of);
    submission.model = checkpoint("tiny-pixart");
    submission.request.sampler = sampler;
    const auto result = shared_cluster().run(submission);
    CHECK(range_error(result.latents.value(), reference.floats(of, "latents")) <=
          kPixArtLatentBound);
  }
  // The DDIM case's folder is DDIM's already: by name it is the same, by another name it is not.
  const auto& of = reference.find("ddim");
  const auto expected = reference.floats(of, "latents");
  auto submission = reference.submission(of);
  submission.request.sampler = "ddim";
  CHECK(range_error(shared_cluster().run(submission).latents.value(), expected) <=
        kPixArtLatentBound);
  submission.request.sampler = "euler";
  CHECK(range_error(shared_cluster().run(submission).latents.value(), expected) > 1e-3);
  submission.request.sampler = "plms";
  const auto error = shared_cluster().refusal(submission);
  CAPTURE(error.what);
  CHECK(error.code == ErrorCode::bad_request);
  CHECK(error.what.find("plms") != std::string::npos);
}

TEST_CASE("initial latents replace the seed's noise") {
  Reference reference("pipeline");
  const auto seeded = shared_cluster().run(plain(reference)).latents.value();

  // The seed's own noise, given from outside, changes nothing; the seed then does not matter.
  auto submission = plain(reference);
  submission.request.init_latents = reference.floats(reference.find("plain"), "noise");
  submission.request.seed = 99;
  CHECK(shared_cluster().run(submission).latents.value().data == seeded.data);

  submission.request.init_latents = random_latents({1, 4, 8, 8}, 5);
  const auto first = shared_cluster().run(submission).latents.value();
  submission.request.seed = 0;
  const auto second = shared_cluster().run(submission).latents.value();
  CHECK(first.data == second.data);
  CHECK(range_error(first, seeded) > 1e-2);

  // The last stage samples, the first embeds: both start from what was given, and so do replicas.
  submission.parallelism = {.dp = 1, .cfg = 2, .pp = 3};
  CHECK(range_error(shared_cluster().run(submission).latents.value(), first) <= 1e-5);
  auto two = plain(reference);
  two.request.images_per_prompt = 2;
  two.request.init_latents = random_latents({2, 4, 8, 8}, 6);
  const auto whole = shared_cluster().run(two).latents.value();
  two.parallelism = {.dp = 2, .cfg = 1, .pp = 2};
  CHECK(range_error(shared_cluster().run(two).latents.value(), whole) <= 1e-5);
}

TEST_CASE("initial latents of another size are refused by what is wrong with them") {
  Reference reference("pipeline");
  auto submission = plain(reference);
  submission.request.init_latents = random_latents({1, 4, 8, 6}, 5);
  const auto error = shared_cluster().refusal(submission);
  CAPTURE(error.what);
  CHECK(error.code == ErrorCode::bad_request);
  CHECK(error.what.find("latents") != std::string::npos);
}

TEST_CASE("a prompt that is cut says what was cut, in the progress and in the report") {
  Reference reference("pipeline");
  const auto& of = reference.find("cut_prompt");
  std::vector<std::string> warnings;
  const auto result = shared_cluster().run(reference.submission(of), [&](const Progress& progress) {
    warnings.insert(warnings.end(), progress.warnings.begin(), progress.warnings.end());
  });
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("cut off") != std::string::npos);
  const auto report = nlohmann::json::parse(result.report);
  CHECK(report.at("warnings") == nlohmann::json(warnings));
  const auto whole = reference.floats(reference.find("plain"), "latents");
  CHECK(range_error(result.latents.value(), whole) > 1e-3);  // else the cut would prove nothing
}

TEST_CASE("half precision stays near float32") {
  Reference reference("pipeline");
  const auto expected = reference.floats(reference.find("plain"), "latents");
  const std::pair<std::string, double> bounds[] = {{"bfloat16", 0.05}, {"float16", 0.01}};
  for (const auto& [dtype, bound] : bounds) {
    CAPTURE(dtype);
    auto submission = plain(reference);
    submission.request.dtype = dtype;
    const auto single = shared_cluster().run(submission).latents.value();
    const double error = range_error(single, expected);
    CHECK(error <= bound);
    CHECK(error > 1e-5);  // it was computed in half precision at all
    submission.parallelism = {.dp = 1, .cfg = 2, .pp = 2};
    const double mixed = range_error(shared_cluster().run(submission).latents.value(), expected);
    CHECK(mixed <= bound);
    MESSAGE(dtype << ": within " << error << " of range on one actor, " << mixed << " on four");
  }
}
