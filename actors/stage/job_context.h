#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/finite_check.h"
#include "actors/stage/group_table.h"
#include "actors/stage/network.h"
#include "actors/stage/progress.h"
#include "actors/stage/rows.h"
#include "actors/stage/stage.h"
#include "actors/stage/task_ends.h"
#include "transport/control/blob_store.h"
#include "transport/tensor/group.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/job.h"
#include "transport/wire/task_messages.h"

namespace troupe::actors {

/// Waits of a job for its peers, and their times. Used by the work loop only.
class JobWaits {
 public:
  /// `clock` is null on a CPU.
  JobWaits(WorkProgress& progress, std::uint64_t epoch, std::chrono::milliseconds deadline,
           std::shared_ptr<DeviceClock> clock)
      : progress_(progress), epoch_(epoch), deadline_(deadline), clock_(std::move(clock)) {}

  /// Waits until the operation has ended; on a device only the device waits, and the work loop goes
  /// on. Throws the error that ended the operation, or EpochEnded.
  void wait(const tensor::Work& work);
  /// Waits for the device before the host reads what the device makes, and shows progress while the
  /// device waits for a peer. Returns at once on a CPU. Throws when the epoch has ended, and at the
  /// deadline.
  void await_device();
  /// Returns the function that the host calls between two questions to the device, for one such
  /// wait.
  std::function<void()> pause_for_device() const;
  /// Returns the seconds of all waits of the work loop so far.
  double seconds() const { return seconds_; }
  /// Returns the spans of the waits since the last call; past a bound the last span stands for all
  /// further waits. If the device waits, its marks are the spans.
  std::vector<wire::ClockSpan> take_spans() { return std::exchange(spans_, {}); }
  std::vector<DeviceSpan> take_device_spans() { return std::exchange(device_spans_, {}); }

 private:
  void wait_on_device(const tensor::Work& work);
  void note(std::chrono::steady_clock::time_point start);

  WorkProgress& progress_;
  std::uint64_t epoch_;
  std::chrono::milliseconds deadline_;
  std::shared_ptr<DeviceClock> clock_;
  double seconds_ = 0;
  std::vector<wire::ClockSpan> spans_;
  std::vector<DeviceSpan> device_spans_;
};

/// Blobs that are left for others to fetch, and go with their publisher.
class PublishedBlobs {
 public:
  explicit PublishedBlobs(control::BlobStore& store) : store_(store) {}
  ~PublishedBlobs();
  PublishedBlobs(const PublishedBlobs&) = delete;
  PublishedBlobs& operator=(const PublishedBlobs&) = delete;

  wire::BlobRef publish(const std::string& name, std::string bytes,
                        std::vector<std::int64_t> shape);
  /// Adds the blob to its kind, of which all but the newest `most` are forgotten.
  wire::BlobRef keep_newest(std::deque<control::BlobId>& kind, wire::BlobRef blob,
                            std::size_t most);

 private:
  control::BlobStore& store_;
  std::vector<control::BlobId> published_;
};

/// Tools of a job; all of them outlive the job.
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

/// Results of a task beside its tensors: blobs to fetch, warnings for the user, and, of a step's
/// end at the last stage, its timestep.
struct TaskResult {
  std::vector<wire::BlobRef> blobs;
  std::vector<wire::Warning> warnings;
  std::optional<double> timestep = {};
};

models::PictureSize latent_size(const spec::ModelSpec& spec, const wire::ImageRequest& request);

/// Returns the sizes of the latents of a request's pictures to edit.
std::vector<models::PictureSize> reference_sizes(const spec::ModelSpec& spec,
                                                 const wire::ImageRequest& request);

/// Returns the number of tokens that a prompt is padded or cut to, with those of the pictures that
/// its text encoder sees.
std::int64_t prompt_tokens(const spec::ModelSpec& spec, const wire::ImageRequest& request);

/// Returns whether this actor runs a text encoder that sees pictures to edit.
bool sees_images(const spec::ModelSpec& spec, const wire::BeginJob& begin);

/// Returns whether a job's latents begin with those of a picture.
inline bool begins_with_picture(const wire::BeginJob& begin, const spec::ModelSpec& spec) {
  const auto& request = begin.request;
  return request.init_image_bytes > 0 &&
         spec.inputs.begins_with_picture(request.strength.value_or(1));
}

/// Returns whether the latents of a picture to begin with are needed: at the start, and in every
/// step where steps keep a part of it.
inline bool needs_image(const wire::BeginJob& begin, const spec::ModelSpec& spec) {
  const bool kept = begin.request.mask_image_bytes > 0 && !spec.inputs.beside_mask();
  return begins_with_picture(begin, spec) && (begin.first_step == 0 || kept);
}

/// State that the parts of a job share: the request, the tools, and the shapes that follow. Every
/// tensor that the job needs is shaped by its BeginJob; peers are asked for nothing but tensors.
struct JobContext {
  JobContext(wire::BeginJob begin, const JobTools& tools);

  const wire::BeginJob begin;
  const JobTools tools;
  const std::int64_t patch_size;  // latent rows of a token row
  const std::int64_t channels;    // of the latents
  const models::PictureSize size;
  const std::vector<models::PictureSize> references;  // latents of the pictures to edit
  const std::int64_t prompt_tokens;
  JobWaits waits;
  PublishedBlobs blobs;
  FiniteCheck finite;
  LayerWatch layers;  // of the micro-step at hand

  bool first_stage() const { return begin.stage.rank == 0; }
  bool last_stage() const { return begin.stage.rank + 1 == begin.stage.degree; }
  /// Returns the stage that sends to this one; for the first stage this is the last.
  int previous_stage() const {
    return (begin.stage.rank + begin.stage.degree - 1) % begin.stage.degree;
  }
  std::int64_t images() const { return begin.last_image - begin.first_image; }
  /// Returns whether a negative branch is computed beside the positive one.
  bool guided() const;
  /// Returns the number of branches that this actor computes.
  std::int64_t branches() const;
  /// Meaning of the channels beside the latents.
  spec::BesideLatents beside() const { return tools.stage.spec().inputs.beside; }
  bool is_masked() const { return begin.request.mask_image_bytes > 0; }
  /// Returns whether steps keep a part of the picture to begin with as it is: not where the network
  /// is given that part.
  bool keeps_unmasked() const { return is_masked() && !tools.stage.spec().inputs.beside_mask(); }

  /// Number of micro-steps of a step that goes patch by patch.
  int micro_steps() const { return static_cast<int>(begin.micro_steps.size()); }
  /// Returns whether the plan takes the whole picture at once in a step, not patch by patch.
  bool is_whole(int step) const { return wire::is_whole(begin.steps.at(step)); }
  /// The micro-step is the last one of its step.
  bool ends_step(StepPlace place) const;
  NetworkStep network_step(StepPlace place) const;
  /// "step 5 patch 1 stage 0 (blocks 0 to 13)"
  std::string describe(StepPlace place) const;

  int sequence_rank() const { return actors::sequence_rank(begin); }
  /// Returns the own rows of a micro-step, or with patch -1 those of the whole picture.
  RowRuns own_rows(int patch) const { return rows_of(begin.micro_steps, patch, sequence_rank()); }
  /// Returns the shape of these rows' latents: [n, C, rows · patch_size, w].
  std::vector<std::int64_t> latent_shape(const RowRuns& rows) const;

  /// Same as FiniteCheck::require_now, for values that the host reads: it waits for them.
  void require_finite(const at::Tensor& values, const std::string& what);
  /// Returns the group; null for id 0.
  std::shared_ptr<tensor::Group> group(std::uint32_t id) const;
  /// Shows progress; throws when the job's epoch has ended.
  void tick() const { tools.progress.tick_in(begin.epoch); }
};

/// Returns whether the latents of frames that a video is given are needed: beside its latents
/// always, else at the start, for a boundary has them.
inline bool needs_frames(const JobContext& job) {
  return job.beside() == spec::BesideLatents::given_frames ||
         (job.size.given_frames > 0 && job.begin.first_step == 0);
}

}  // namespace troupe::actors
