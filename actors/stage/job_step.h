#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/stage/guidance_rescale.h"
#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "actors/stage/job_transfers.h"

namespace troupe::actors {

/// A job's micro-steps: the network on what came, then at the last stage guidance and the sampler,
/// elsewhere on to the next stage.
class JobStep {
 public:
  JobStep(JobContext& job, JobLatents& latents, JobNetwork& network, JobTransfers& transfers)
      : job_(job), latents_(latents), network_(network), transfers_(transfers) {}

  /// Returns true if the rows' latents are a step further now: at the last stage, with the last
  /// part of the batch.
  bool run(StepPlace place);
  /// Makes the next micro-step meet a NaN, as if it had computed one.
  void poison() { poisoned_ = true; }

  /// Returns the use of the step cache, from one rank for all that decide together; nothing at the
  /// other ranks.
  CacheUse cache_use() const;
  /// Calls of the network for one picture, branches together, and those of them that its step cache
  /// left out.
  struct PictureCalls {
    std::int64_t all = 0;
    std::int64_t skipped = 0;
  };
  /// Returns the calls of a picture of this replica, at the last stage, when all steps are done;
  /// nothing without a step cache.
  std::optional<PictureCalls> calls_of(std::int64_t picture) const;

 private:
  /// Returns the own rows of the latents as the network takes them.
  at::Tensor input(const NetworkStep& step, const RowRuns& rows) const;
  /// Returns all items' prediction once the last part of the batch is here, undefined before.
  at::Tensor join_parts(at::Tensor prediction, StepPlace place);
  at::Tensor guide(at::Tensor prediction, StepPlace place);
  at::Tensor rescale(const at::Tensor& guided, const at::Tensor& text, StepPlace place);
  void count_skips();
  /// Checks values that the current micro-step has made for the next stage or the sampler.
  void require_finite(const at::Tensor& values, const char* what, const NetworkStep& step);

  JobContext& job_;
  JobLatents& latents_;
  JobNetwork& network_;
  JobTransfers& transfers_;
  std::unique_ptr<GuidanceRescale> rescale_;
  std::vector<at::Tensor> predicted_parts_;
  std::vector<std::int64_t> skipped_calls_;  // by picture; empty without a step cache
  bool poisoned_ = false;
};

}  // namespace troupe::actors
