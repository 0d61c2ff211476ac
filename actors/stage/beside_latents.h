#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "transport/control/blob_store.h"

namespace troupe::actors {

/// The channels that stand beside a job's latents in its network's input, the same in every step:
/// who decodes makes them in the job's first task, and the whole replica gets them. A job that is
/// taken up again makes them anew, of the same pictures and the same noise.
///
/// A family has such channels if its facts say how many (`beside_channels`, behind the latents'
/// `in_channels`) and its pipeline's line says what they are (`inputs.beside`). Its `tokens_of`, or
/// a U-Net's first convolution, gets latents and channels in one tensor, the latents first, in
/// every method; prediction, sampler and boundaries know nothing of them. Another kind of channels
/// takes a value of spec::BesideLatents, a case of spec::beside_channels (how many: a folder is
/// held against it), the files that WorkerJobs fetches for it, and a case of `encode`.
class BesideLatents {
 public:
  /// Files that the channels are made of, where this actor helps to encode them; else null.
  struct Files {
    control::BlobBytes picture;  ///< picture to begin with
    control::BlobBytes mask;
    control::BlobBytes control;
  };
  BesideLatents(JobContext& job, JobLatents& latents, Files files) : job_(job), latents_(latents) {
    if (job_.beside() != spec::BesideLatents::none) files_ = std::move(files);
  }

  /// Reads the pictures, drops them, and encodes them: together with all who decode. Nothing where
  /// the model has no such channels.
  void encode();
  /// Puts channels of zeros beside the latents.
  void keep_blank();
  /// Puts the encoded channels beside the latents of all ranks; called by the whole replica.
  void share();

 private:
  /// The picture to begin with as it is without what the mask paints anew, encoded, and the mask.
  at::Tensor encode_masked();
  at::Tensor encode_control();
  /// Returns whether the model has such channels, made of pictures: GivenFrames makes a video's.
  bool makes_them() const;
  at::Tensor zeros() const;

  JobContext& job_;
  JobLatents& latents_;
  Files files_;
  at::Tensor encoded_;  // at the first who encodes, [k, channels, h, w] until it is shared
};

}  // namespace troupe::actors
