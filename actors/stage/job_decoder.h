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

/// Makes the outputs of a job's latents: pictures or videos at the end, previews on the way.
class JobDecoder {
 public:
  JobDecoder(JobContext& job, JobLatents& latents, JobTransfers& transfers, const JobStep& step)
      : job_(job), latents_(latents), transfers_(transfers), step_(step) {}

  /// Decodes a part of the pictures; with the first part, all latents are sent to the ranks that
  /// decode. If the job asks for latents, nothing is decoded.
  TaskResult decode(int part);
  /// Makes the previews of this step if the job asks for them: latents, or rough pictures.
  std::vector<wire::BlobRef> previews(int step);

 private:
  // Decode these pictures one by one; the first decoder returns their blobs, the other ranks
  // nothing.
  std::vector<wire::BlobRef> decode_pictures(wire::RowRange run);
  std::vector<wire::BlobRef> decode_videos(wire::RowRange run);
  /// Pictures [n, 3, H, W] of [n, C, h, w] at the first decoder, undefined at the others.
  at::Tensor decode_together(const at::Tensor& latents);
  /// Returns the texts of a picture's file, by keyword.
  std::vector<std::pair<std::string, std::string>> picture_text(std::int64_t image) const;

  JobContext& job_;
  JobLatents& latents_;
  JobTransfers& transfers_;
  const JobStep& step_;
  std::deque<control::BlobId> previews_;
};

}  // namespace troupe::actors
