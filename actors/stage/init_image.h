#pragma once
#include <ATen/core/Tensor.h>

#include <utility>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "transport/control/blob_store.h"

namespace troupe::actors {

/// The picture that a job of image-to-image begins with: who decodes encodes it, and everybody's
/// latents begin with it.
class InitImage {
 public:
  /// `png` where this actor helps to encode it; else null.
  InitImage(JobContext& job, JobLatents& latents, control::BlobBytes png)
      : job_(job), latents_(latents), png_(std::move(png)) {}

  /// Reads the picture and drops it. Its latents [1, C, h, w], float32, or of seeds for each
  /// picture as many, at the first of those who encode; undefined at the others, and where there is
  /// no picture.
  at::Tensor encode();
  /// Everybody's latents from those that one actor has; the whole replica calls it.
  void begin_latents(const at::Tensor& encoded);

 private:
  /// [1, 3, H, W] in [-1, 1].
  at::Tensor read_pixels();
  /// A sample of the encoder's distribution by `noise` [k, C, h, w], scaled as a sampler takes
  /// latents.
  at::Tensor encode_together(const at::Tensor& pixels, const at::Tensor& noise);

  JobContext& job_;
  JobLatents& latents_;
  control::BlobBytes png_;
};

}  // namespace troupe::actors
