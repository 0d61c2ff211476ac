#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kBound = 1e-5;  // of the reference's range, or of the single actor's
constexpr int kLevelBound = 1;   // of 255

/// The submission of a case, with its LoRA where it has one.
Submission submission_of(Reference& reference, const nlohmann::json& of, Parallelism mix = {}) {
  auto submission = reference.submission(of, mix);
  if (of.contains("lora"))
    submission.request.loras = {{(kMade / of.at("lora").get<std::string>()).string(), 1}};
  return submission;
}

struct Way {
  const char* method;
  const char* kv;
  int patches;
};

}  // namespace

TEST_CASE("Z-Image's pictures are those of its pipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  Worst latents, levels;
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    const auto result = shared_cluster().run(submission_of(reference, of));
    const double error = range_error(result.latents.value(), reference.floats(of, "latents"));
    CHECK(error <= kBound);
    latents.see(error, name);
    if (!of.at("image").get<bool>()) continue;
    for (std::size_t i = 0; i < result.pictures.size(); ++i) {
      const int level = level_error(decode_png(result.pictures[i].png),
                                    picture_of(reference.bytes(of, "image"), i));
      CHECK(level <= kLevelBound);
      levels.see(level, name);
    }
  }
  CHECK(latents.seen >= 11);
  CHECK(levels.seen >= 2);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("Z-Image makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  const Way ways[] = {{"exact", "stale", 1},
                      {"pipefusion", "stale", 4},
                      {"pipefusion", "predict", 3},
                      {"distrifusion", "stale", 3},
                      {"distrifusion", "predict", 2}};
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 4},
                                          {.ulysses = 3},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.ulysses = 2, .ring = 2},
                                          {.tp = 4},
                                          {.dp = 2, .pp = 3},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  Worst worst;
  std::size_t turn = 0;
  for (const auto& way : ways) {
    // Texts of different length, and rows that leave a picture to be filled up.
    auto submission = reference.submission(reference.find("zimage_wide"));
    auto& request = submission.request;
    request.prompts.push_back("a tree by the river");
    request.method = way.method;
    request.kv = way.kv;
    request.num_pipeline_patch = way.patches;
    const auto single = shared_cluster().run(submission).latents.value();
    const std::size_t stride = way.patches == 1 || full_matrix() ? 1 : 3;
    for (std::size_t i = stride == 1 ? 0 : turn++ % stride; i < mixes.size(); i += stride) {
      const auto where = std::string(way.method) + " " + way.kv + " at " + name_of(mixes[i]);
      CAPTURE(where);
      submission.parallelism = mixes[i];
      const double error = range_error(shared_cluster().run(submission).latents.value(), single);
      CHECK(error <= kBound);
      worst.see(error, where);
    }
  }
  MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
}

TEST_CASE("Z-Image is streamed, rounded to 16 and to 8 bits and with a LoRA at several degrees") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  const auto error_of = [&](const char* name, auto change) {
    const auto& of = reference.find(name);
    auto submission = submission_of(reference, of, {.pp = 2, .tp = 2});
    change(submission.request);
    return range_error(shared_cluster().run(submission).latents.value(),
                       reference.floats(of, "latents"));
  };
  CHECK(error_of("zimage_plain", [](auto& of) { of.offload = "blocks"; }) <= kBound);
  CHECK(error_of("zimage_lora", [](auto&) {}) <= kBound);
  CHECK(error_of("zimage_plain", [](auto& of) { of.dtype = "bfloat16"; }) <= 0.05);
  CHECK(error_of("zimage_plain", [](auto& of) { of.dtype = "float16"; }) <= 0.01);
  auto eight = reference.submission(reference.find("zimage_plain"));
  eight.request.weight_dtype = "int8";
  const auto single = shared_cluster().run(eight).latents.value();
  eight.parallelism = {.tp = 2};
  const Foreseen foreseen(eight);
  const auto several = shared_cluster().run(eight);
  CHECK(range_error(several.latents.value(), single) <= kBound);
  check_sent(nlohmann::json::parse(several.report), foreseen);
}

TEST_CASE("plans know Z-Image's weights and what each rank sends, to the byte") {
  if (lacks_made_fixtures()) return;
  Reference reference("zimage");
  const Way ways[] = {
      {"exact", "stale", 1}, {"pipefusion", "predict", 3}, {"distrifusion", "predict", 2}};
  const Parallelism mixes[] = {
      {}, {.pp = 3}, {.ulysses = 2, .ring = 2}, {.tp = 2}, {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& mix : mixes) {
    for (const auto& way : ways) {
      CAPTURE(std::string(way.method) + " at " + name_of(mix));
      auto submission = reference.submission(reference.find("zimage_wide"), mix);
      auto& request = submission.request;
      request.method = way.method;
      request.kv = way.kv;
      request.num_pipeline_patch = way.patches;
      request.dtype = "bfloat16";  // not packed in panels, so that odd widths are exact, too
      const Foreseen foreseen(submission);
      const auto report = nlohmann::json::parse(shared_cluster().run(submission).report);
      check_weights(report, foreseen);
      check_kv(report, foreseen);
      check_sent(report, foreseen);
    }
  }
}
