#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/oracle.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

// What holds of every family of transformers. Each check runs jobs at the shared cluster, and
// counts how far off they were.

namespace troupe::testing {

inline constexpr double kDegreesBound = 1e-5;  // of the range of the single actor's latents
inline constexpr int kLevelBound = 1;          // of 255

/// A method as requests ask for it.
struct Way {
  const char* method;
  const char* kv;
  int patches;

  void set(ImageRequest& request) const {
    request.method = method;
    request.kv = kv;
    request.num_pipeline_patch = patches;
  }
};

/// Gives a case of made fixtures the LoRA that it names.
inline void add_made_lora(const nlohmann::json& of, Submission& submission) {
  if (of.contains("lora"))
    submission.request.loras = {{(kMade / of.at("lora").get<std::string>()).string(), 1}};
}

/// Holds final latents and pictures of all cases against diffusers'. `change` gives a case's
/// submission what `reference` does not know of.
inline void check_pictures(
    Reference& reference, double bound, Worst& latents, Worst& levels,
    const std::function<void(const nlohmann::json&, Submission&)>& change = {}) {
  for (const auto& of : reference.cases()) {
    const std::string name = of.at("name");
    CAPTURE(name);
    auto submission = reference.submission(of);
    if (change) change(of, submission);
    const auto result = shared_cluster().run(submission);
    REQUIRE(result.latents);
    const double error = range_error(*result.latents, reference.floats(of, "latents"));
    CHECK(error <= bound);
    latents.see(error, name);
    if (!of.at("image").get<bool>()) continue;
    for (std::size_t i = 0; i < result.pictures.size(); ++i) {
      const int level = level_error(tall_picture(result.pictures[i].png),
                                    picture_of(reference.bytes(of, "image"), i));
      CHECK(level <= kLevelBound);
      levels.see(level, name);
    }
  }
}

/// Runs a case with one prompt more at all mixes, exact, and at every third of them by patches, so
/// that each way meets others.
inline void check_degrees(Reference& reference, const std::string& name,
                          const std::vector<Parallelism>& mixes, Worst& worst,
                          const std::string& one_more = "a tree") {
  const Way ways[] = {{"exact", "stale", 1},
                      {"pipefusion", "stale", 4},
                      {"pipefusion", "predict", 3},
                      {"distrifusion", "stale", 3},
                      {"distrifusion", "predict", 2}};
  std::size_t turn = 0;
  for (const auto& way : ways) {
    auto submission = reference.submission(reference.find(name));
    submission.request.prompts.push_back(one_more);
    way.set(submission.request);
    const auto single = shared_cluster().run(submission).latents.value();
    const std::size_t stride = way.patches == 1 || full_matrix() ? 1 : 3;
    for (std::size_t i = stride == 1 ? 0 : turn++ % stride; i < mixes.size(); i += stride) {
      const auto where = name + " " + way.method + " " + way.kv + " at " + name_of(mixes[i]);
      CAPTURE(where);
      submission.parallelism = mixes[i];
      const double error = range_error(shared_cluster().run(submission).latents.value(), single);
      CHECK(error <= kDegreesBound);
      worst.see(error, where);
    }
  }
}

/// Holds a case in half precision, on several actors, against diffusers' float32.
inline void check_half(Reference& reference, const std::string& name, const std::string& dtype,
                       double bound, Worst& worst) {
  CAPTURE(name + " " + dtype);
  const auto& of = reference.find(name);
  auto submission = reference.submission(of, {.pp = 2, .ring = 2});
  submission.request.dtype = dtype;
  const double error = range_error(shared_cluster().run(submission).latents.value(),
                                   reference.floats(of, "latents"));
  CHECK(error <= bound);
  CHECK(error > 1e-5);  // it was computed in half precision at all
  worst.see(error, name);
}

/// Holds a book of pictures by patches against the oracle, on one actor and each case at another of
/// several mixes.
inline void check_oracle(Reference& reference, Worst& worst) {
  const std::vector<Parallelism> mixes = {
      {.pp = 2}, {.ulysses = 2}, {.ring = 2}, {.tp = 2}, {.pp = 2, .ulysses = 2, .ring = 2}};
  std::size_t turn = 0;
  for (const auto& of : reference.cases()) {
    for (const auto& mix : {Parallelism{}, mixes[turn++ % mixes.size()]}) {
      const auto where = of.at("name").get<std::string>() + " at " + name_of(mix);
      CAPTURE(where);
      const auto got = shared_cluster().run(reference.submission(of, mix)).latents.value();
      const double error = range_error(got, reference.floats(of, "latents"));
      CHECK(error <= kOracleBound);
      worst.see(error, where);
    }
  }
}

/// Holds what a case's jobs hold and send against their plans, to the byte.
inline void check_foreseen(Reference& reference, const std::string& name) {
  const Way ways[] = {
      {"exact", "stale", 1}, {"pipefusion", "predict", 3}, {"distrifusion", "predict", 2}};
  const Parallelism mixes[] = {
      {}, {.pp = 3}, {.ulysses = 2, .ring = 2}, {.tp = 2}, {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& mix : mixes) {
    for (const auto& way : ways) {
      CAPTURE(name + " " + way.method + " at " + name_of(mix));
      auto submission = reference.submission(reference.find(name), mix);
      way.set(submission.request);
      submission.request.dtype = "bfloat16";  // not packed in panels: odd widths are exact, too
      const Foreseen foreseen(submission);
      const auto report = nlohmann::json::parse(shared_cluster().run(submission).report);
      check_weights(report, foreseen);
      // Padding of a text that is cross-attended to is not kept: prompts are shorter than they
      // may be.
      const auto& transformer = foreseen.model.transformer;
      if (transformer.pads_text || transformer.joint) check_kv(report, foreseen);
      check_sent(report, foreseen);
    }
  }
}

}  // namespace troupe::testing
