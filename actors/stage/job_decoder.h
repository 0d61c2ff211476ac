#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "actors/stage/job_step.h"
#include "actors/stage/job_transfers.h"

namespace troupe::actors {

/// What becomes of a job's latents: pictures or videos at the end, previews on the way.
class JobDecoder {
 public:
  JobDecoder(JobContext& job, JobLatents& latents, JobTransfers& transfers, const JobStep& step)
      : job_(job), latents_(latents), transfers_(transfers), step_(step) {}

  /// A part of the pictures; with the first part, all latents come to those who decode. Where the
  /// latents are what is asked for, nothing is decoded.
  TaskResult decode(int part);
  /// What of this step is shown at once, where that is asked for: latents, or rough pictures.
  std::vector<wire::BlobRef> previews(int step);

 private:
  // Of these pictures, one by one, at the first decoder; nothing at the others.
  std::vector<wire::BlobRef> decode_pictures(wire::RowRange run);
  std::vector<wire::BlobRef> decode_videos(wire::RowRange run);
  /// Pictures [n, 3, H, W] of [n, C, h, w] at the first decoder, undefined at the others.
  at::Tensor decode_together(const at::Tensor& latents);
  /// What a picture's file says of it, by keyword.
  std::vector<std::pair<std::string, std::string>> picture_text(std::int64_t image) const;

  JobContext& job_;
  JobLatents& latents_;
  JobTransfers& transfers_;
  const JobStep& step_;
  std::deque<control::BlobId> previews_;
};

}  // namespace troupe::actors
