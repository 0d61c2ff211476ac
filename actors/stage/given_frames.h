#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "transport/control/blob_store.h"

namespace troupe::actors {

/// Files of the frames that a video is given; null where there is none, or where this actor does
/// not encode.
struct FrameFiles {
  control::BlobBytes first = nullptr, last = nullptr;
};

/// The frames that a video is given, its first one and perhaps its last one: who decodes encodes
/// them together, each actor its rows. Their latents take the place of the video's own, which
/// begins with them, or stand beside the latents in every step, with zeros for the other frames and
/// a mask that tells them apart. A vision tower, where the model has one, sees them at the first of
/// those actors.
class GivenFrames {
 public:
  GivenFrames(JobContext& job, JobLatents& latents, FrameFiles files)
      : job_(job), latents_(latents), files_(std::move(files)) {}

  /// Reads the frames, drops the files, and encodes them.
  void encode();
  /// Gives the job frames of zeros; returns what a vision tower sees of them.
  at::Tensor keep_blank();
  /// Gives all ranks what was encoded, which one actor has; called by the whole replica. Returns
  /// the vision tower's states [1, T, d], undefined where there is none.
  at::Tensor share();

 private:
  bool stand_beside() const { return job_.beside() == spec::BesideLatents::given_frames; }
  /// Latent frames that are encoded.
  std::int64_t latent_frames() const;
  /// Reads a frame as a model takes it, float32 [1, 3, H, W], after the vision tower has seen it.
  at::Tensor read(control::BlobBytes& file, const char* what);
  /// Encodes frames together with all who decode: [1, C, F · h, w] at the first of them.
  at::Tensor encode(const at::Tensor& first, const at::Tensor& last);
  /// Gives the job these latents.
  void give(const at::Tensor& frames);
  at::Tensor blank() const;
  at::Tensor nothing_seen() const;

  JobContext& job_;
  JobLatents& latents_;
  FrameFiles files_;
  at::Tensor encoded_;            // until they are shared
  std::vector<at::Tensor> seen_;  // of each frame, likewise
};

}  // namespace troupe::actors
