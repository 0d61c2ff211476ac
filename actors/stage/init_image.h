#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "transport/control/blob_store.h"

namespace troupe::actors {

/// The picture that a job of image-to-image begins with, and its mask: who decodes encodes it, and
/// everybody's latents begin with it.
class InitImage {
 public:
  /// `picture`, a file, where this actor helps to encode it, `mask` at the first of those; else
  /// null.
  InitImage(JobContext& job, JobLatents& latents, control::BlobBytes picture,
            control::BlobBytes mask)
      : job_(job), latents_(latents), picture_(std::move(picture)), mask_(std::move(mask)) {}

  /// Reads the picture, drops it, and encodes it. The first of the ranks that encode returns the
  /// latents [1, C, h, w], float32, or with a seed for each picture as many as there are pictures;
  /// the others return an undefined tensor, as do all if there is no picture. With a mask
  /// [k, C + 1, h, w], the mask last.
  at::Tensor encode();
  /// Steps keep a blank picture where the job has a mask.
  void keep_blank();
  /// Begins the latents of all ranks from the encoded ones that one actor has; called by the whole
  /// replica.
  void begin_latents(const at::Tensor& encoded);

 private:
  /// uint8 [H, W, 3] in the request's size; drops the file. `what` is it in words.
  at::Tensor read_pixels(control::BlobBytes& picture, const std::string& what);
  /// A sample of the encoder's distribution by `noise` [k, C, h, w], scaled as a sampler takes
  /// latents.
  at::Tensor encode_together(const at::Tensor& pixels, const at::Tensor& noise);

  JobContext& job_;
  JobLatents& latents_;
  control::BlobBytes picture_;
  control::BlobBytes mask_;
};

}  // namespace troupe::actors
