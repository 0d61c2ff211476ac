#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/reference.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

namespace troupe::testing {

inline constexpr double kCacheBound = 1e-4;         // of the reference's range
inline constexpr double kCacheDegreesBound = 1e-5;  // of the range of the single actor's latents

struct Cached {
  Latents latents;
  int calls = 0;
  int skipped = 0;
  std::vector<int> by_step;
  std::vector<int> by_picture;  // as the PNGs say
};

inline Cached cached(const JobResult& result) {
  const auto report = nlohmann::json::parse(result.report);
  const auto& cache = report.at("step_cache");
  Cached out{.latents = result.latents.value(),
             .calls = cache.at("calls"),
             .skipped = cache.at("skipped"),
             .by_step = cache.at("skipped_by_step").get<std::vector<int>>(),
             .by_picture = {}};
  for (const auto& picture : result.pictures) {
    const auto text = nlohmann::json::parse(png_text(picture.png, "troupe"));
    out.by_picture.push_back(text.at("step_cache_skipped"));
    CHECK(text.at("step_cache_calls").get<int>() * static_cast<int>(result.pictures.size()) ==
          out.calls);
  }
  return out;
}

inline Submission of_case(Reference& reference, const std::string& name, const std::string& cache,
                          double threshold) {
  auto submission = reference.submission(reference.find(name));
  submission.request.step_cache = cache;
  submission.request.step_cache_threshold = threshold;
  return submission;
}

/// Runs at one actor and at each mix: the same picture, the same calls left out.
inline void check_mixes(Submission submission, const std::string& what,
                        const std::vector<Parallelism>& mixes, Worst& worst) {
  submission.parallelism = {};
  const auto single = cached(shared_cluster().run(submission));
  CAPTURE(what);
  CHECK(single.skipped > 0);
  CHECK(single.skipped < single.calls);
  for (const auto& mix : mixes) {
    const auto where = what + " at " + name_of(mix);
    CAPTURE(where);
    submission.parallelism = mix;
    const auto got = cached(shared_cluster().run(submission));
    CHECK(got.by_step == single.by_step);
    CHECK(got.calls == single.calls);
    CHECK(got.by_picture == single.by_picture);
    const double error = range_error(got.latents, single.latents);
    CHECK(error <= kCacheDegreesBound);
    worst.see(error, where);
  }
}

}  // namespace troupe::testing
