#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "actors/stage/job_context.h"
#include "actors/stage/job_latents.h"
#include "actors/stage/job_transfers.h"

namespace troupe::actors {

/// Brings guided predictions towards the deviation that the text's own prediction has over the
/// whole picture (arXiv 2305.08891, §3.4), where each actor has some rows and a step may compute
/// one patch alone. What is not computed in a call counts with its values of before, by the rule
/// that the method has for keys and values; so the result does not depend on degrees.
class GuidanceRescale {
 public:
  struct Shape {
    std::int64_t patches = 1;
    std::int64_t images = 1;
    /// Others' patches always count as they were a step before (DistriFusion), not as they were
    /// computed last (PipeFusion).
    bool step_before = false;
  };
  /// Latent rows of a patch, as a call has them one below the other.
  struct Cut {
    std::int64_t patch = 0;
    std::int64_t rows = 0;
  };
  /// Adds up a float64 tensor over all who have rows of this call, each row once; in place.
  using Sum = std::function<void(at::Tensor& moments)>;

  GuidanceRescale(double phi, Shape shape, Sum sum);

  /// `guided` and `text` [images, C, rows, w] float32, rows as `cuts` say, perhaps none. `whole`:
  /// the step takes all patches at once. Every member of the sum calls it.
  at::Tensor apply(int step, bool whole, const at::Tensor& guided, const at::Tensor& text,
                   const std::vector<Cut>& cuts);

 private:
  double phi_;
  Shape shape_;
  Sum sum_;
  int step_ = -1;
  at::Tensor newest_;  // [patches, images, moments] float64
  at::Tensor before_;  // as it was when the step began
};

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
