#pragma once
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "actors/stage/job_context.h"

namespace troupe::actors {

/// Pictures that a job's ControlNets follow.
class ControlPictures {
 public:
  /// `files`: where this actor computes ControlNets; else none.
  ControlPictures(const JobContext& job, std::vector<control::BlobBytes> files)
      : job_(job), files_(std::move(files)) {}

  /// Reads a picture and drops its file: float32 [1, 3, H, W] from 0 to 1, in the size that is
  /// computed, as diffusers' ControlNet pipelines take it. Zeros in a rehearsal, which has none.
  at::Tensor take(std::size_t number);

 private:
  const JobContext& job_;
  std::vector<control::BlobBytes> files_;
};

}  // namespace troupe::actors
