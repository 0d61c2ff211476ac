#pragma once
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "troupe/client.h"

namespace troupe::bench {

inline const std::string kDemoModel = TROUPE_SOURCE_DIR "/examples/demo/model";

template <class T>
T take(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().what);
  return std::move(result.value());
}

/// One picture of the demo model, or of another; `patches` above 1 means PipeFusion.
inline Submission picture_job(int size, int steps, double guidance, int patches, int seed,
                              const Parallelism& degrees) {
  Submission submission;
  auto& request = submission.request;
  request.prompts = {"a red circle above a blue square on a white background"};
  request.height = request.width = size;
  request.steps = steps;
  request.guidance_scale = guidance;
  request.seed = static_cast<std::uint64_t>(seed);
  if (patches > 1) request.method = "pipefusion";
  request.num_pipeline_patch = patches;
  submission.parallelism = degrees;
  return submission;
}

/// Sorts in place.
inline double median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

}  // namespace troupe::bench
