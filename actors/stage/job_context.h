#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/stage/device_clock.h"
#include "actors/stage/finite_check.h"
#include "actors/stage/group_table.h"
#include "actors/stage/job_waits.h"
#include "actors/stage/network.h"
#include "actors/stage/progress.h"
#include "actors/stage/published_blobs.h"
#include "actors/stage/rows.h"
#include "actors/stage/stage.h"
#include "transport/control/blob_store.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

/// What a job works with; all of it outlives the job.
struct JobTools {
  Stage& stage;
  GroupTable& groups;
  WorkProgress& progress;
  control::BlobStore& blobs;
  std::chrono::milliseconds transfer_deadline;
  bool cuda_graphs = false;
  std::shared_ptr<DeviceClock> clock = nullptr;  // null on a CPU
  FiniteCheck::Tell not_finite = fail_with;      // told of what is not
};

/// What running a task left behind: blobs to fetch, warnings for the user, and of a step's end at
/// the last stage its timestep.
struct TaskResult {
  std::vector<wire::BlobRef> blobs;
  std::vector<wire::Warning> warnings;
  std::optional<double> timestep = {};
};

models::PictureSize latent_size(const spec::ModelSpec& spec, const wire::ImageRequest& request);

/// The latents of a picture to begin with are needed: at the start, and with a mask in every step.
inline bool needs_image(const wire::BeginJob& begin) {
  const auto& request = begin.request;
  return request.init_image_bytes > 0 && (begin.first_step == 0 || request.mask_image_bytes > 0);
}

/// What the parts of a job share: what was asked for, what it is done with, and the shapes that
/// follow. Every tensor that the job needs is shaped by its BeginJob; nothing is asked of peers but
/// tensors.
struct JobContext {
  JobContext(wire::BeginJob begin, const JobTools& tools);

  const wire::BeginJob begin;
  const JobTools tools;
  const std::int64_t patch_size;  // latent rows of a token row
  const std::int64_t channels;    // of the latents
  const models::PictureSize size;
  JobWaits waits;
  PublishedBlobs blobs;
  FiniteCheck finite;
  LayerWatch layers;  // of the micro-step at hand

  bool first_stage() const { return begin.stage.rank == 0; }
  bool last_stage() const { return begin.stage.rank + 1 == begin.stage.degree; }
  /// The stage that sends to this one; the last one to the first.
  int previous_stage() const {
    return (begin.stage.rank + begin.stage.degree - 1) % begin.stage.degree;
  }
  std::int64_t images() const { return begin.last_image - begin.first_image; }
  /// A negative branch is computed beside the positive one.
  bool guided() const;
  /// Of them, those that this actor computes.
  std::int64_t branches() const;
  /// A part of the picture to begin with stays as it is.
  bool is_masked() const { return begin.request.mask_image_bytes > 0; }

  /// Micro-steps of a step that goes patch by patch.
  int micro_steps() const { return static_cast<int>(begin.micro_steps.size()); }
  /// The plan's word on a step: it takes the whole picture at once, not patch by patch.
  bool is_whole(int step) const { return wire::is_whole(begin.steps.at(step)); }
  /// The micro-step is the last one of its step.
  bool ends_step(StepPlace place) const;
  NetworkStep network_step(StepPlace place) const;
  /// "step 5 patch 1 stage 0 (blocks 0 to 13)"
  std::string describe(StepPlace place) const;

  int sequence_rank() const { return actors::sequence_rank(begin); }
  /// Own rows of a micro-step, or with patch -1 of the whole picture.
  RowRuns own_rows(int patch) const { return rows_of(begin.micro_steps, patch, sequence_rank()); }
  /// Of these rows' latents: [n, C, rows · patch_size, w].
  std::vector<std::int64_t> latent_shape(const RowRuns& rows) const;

  /// Of what the host reads: it waits for it. As FiniteCheck::require_now.
  void require_finite(const at::Tensor& values, const std::string& what);
  /// Null for id 0.
  std::shared_ptr<tensor::Group> group(std::uint32_t id) const;
  /// A sign of life; throws when the job's epoch has ended.
  void tick() const { tools.progress.tick_in(begin.epoch); }
};

}  // namespace troupe::actors
