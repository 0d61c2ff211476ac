#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/device_clock.h"
#include "actors/finite_check.h"
#include "actors/group_table.h"
#include "actors/guidance_rescale.h"
#include "actors/network.h"
#include "actors/noise.h"
#include "actors/progress.h"
#include "actors/rows.h"
#include "actors/stage.h"
#include "actors/task_ends.h"
#include "models/samplers/sampler.h"
#include "transport/control/blob_store.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/tensor_messages.h"

namespace troupe::actors {

/// What running a task left behind: blobs to fetch, and words for the user.
struct TaskResult {
  std::vector<wire::BlobRef> blobs;
  std::vector<wire::Warning> warnings;
};

/// One job at one actor: its patches' latents, its network's state, sampler history and the
/// transfers under way. Every tensor that the job needs is shaped by its BeginJob; nothing is asked
/// of peers but tensors. Used by the work loop only.
class Job {
 public:
  struct Tools {
    Stage& stage;
    GroupTable& groups;
    WorkProgress& progress;
    control::BlobStore& blobs;
    std::chrono::milliseconds transfer_deadline;
    bool cuda_graphs = false;
    std::shared_ptr<DeviceClock> clock = nullptr;  // null on a CPU
    bool rehearses =
        false;  // with groups that exchange nothing: what its numbers are is all the same
  };

  using Place = StepPlace;

  /// What the latents begin with, where it is not noise; undefined tensors where it is.
  struct Beginning {
    at::Tensor init_latents;  // float32 [n, C, h, w] of the whole batch
    at::Tensor boundary;      // as assemble_boundary gives it, of this replica's pictures
    control::BlobBytes init_image = nullptr;  // a PNG, where this actor helps encode it
  };
  /// Throws one line when something the request asks for cannot be had (sampler options, memory).
  Job(wire::BeginJob begin, Tools tools, const Beginning& beginning);
  ~Job();

  const wire::BeginJob& begin() const { return begin_; }

  /// Posts the receive of what a stage sends for a micro-step here.
  void post_receive(Place place, int stage);
  TaskResult encode_text();
  /// As `encode_text` for a text without words, of the length that texts are padded or cut to.
  void keep_blank_text();
  /// Leaves behind what the job's previews will need.
  void warm_up_previews();
  /// The step takes the whole picture at once, not patch by patch.
  bool is_whole(int step) const;
  /// Steps of one kind do the same work on the same shapes.
  std::string kind_of(int step) const;
  TaskResult micro_step(Place place);
  /// A part of the pictures; with the first part, all latents come to those who decode.
  TaskResult decode(int part);

  /// What the network keeps from step to step.
  std::uint64_t kv_bytes() const { return static_cast<std::uint64_t>(network_->bytes()); }
  /// What the network sent, by kind of layer.
  std::map<std::string, std::uint64_t> sent_by_layer() const { return network_->sent_by_layer(); }
  /// What the step cache did, of one rank for all that decide together; nothing at the others.
  CacheUse cache_use() const;
  /// Nothing where graphs were not asked for.
  std::optional<GraphUse> graph_use() const;
  double peer_wait_seconds() const { return peer_wait_seconds_; }
  /// When the tasks since the last call waited for peers; past a bound the last wait stands for the
  /// rest. Where the device waits, it is by its marks.
  std::vector<wire::ClockSpan> take_waits() { return std::exchange(waits_, {}); }
  std::vector<DeviceSpan> take_device_waits() { return std::exchange(device_waits_, {}); }

  /// What it keeps, by name, for those who look (job_tensors.cpp).
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
  /// Its own rows of the latents, float32 on the CPU, and which rows they are.
  std::pair<at::Tensor, std::vector<wire::LatentRun>> latent_rows() const;
  /// [pictures, channels, rows, columns] of its whole pictures.
  std::vector<std::int64_t> latent_shape() const { return latents_.sizes().vec(); }
  /// The next micro-step meets a NaN, as if it had computed one.
  void poison() { poisoned_ = true; }

 private:
  struct Transfer {
    at::Tensor tensor;
    tensor::Work work;
    at::Tensor note;  // undefined where none goes ahead
    tensor::Work note_work;
  };
  NoiseSource make_noise() const;
  void draw_latents(const at::Tensor& init_latents);
  /// The job starts from a picture, and has not got beyond its start.
  bool starts_from_picture() const {
    return begin_.request.init_image_bytes > 0 && begin_.first_step == 0;
  }
  /// At those who encode and decode: reads the picture that they were given, and drops it. Its
  /// latents [1, C, h, w], float32, at the first of them; undefined elsewhere (picture_task.cpp).
  at::Tensor encode_picture();
  /// The same of pixels [1, 3, H, W] in [-1, 1], a sample of the encoder's distribution by `noise`
  /// [1, C, h, w], scaled as a sampler takes latents.
  at::Tensor encode_together(const at::Tensor& pixels, const at::Tensor& noise);
  /// Everybody's latents from those that one actor has; the whole replica calls it.
  void start_from_picture(const at::Tensor& encoded);
  /// [n, C, h, w] that the sampler adds at this step; undefined where it adds none. Steps only go
  /// forward. A job that is taken up again draws what came before, too, and drops it.
  at::Tensor step_noise(int step);
  void restore_histories(const at::Tensor& boundary);
  bool first_stage() const { return begin_.stage.rank == 0; }
  bool last_stage() const { return begin_.stage.rank + 1 == begin_.stage.degree; }
  std::int64_t images() const { return begin_.last_image - begin_.first_image; }
  /// A negative branch is computed beside the positive one.
  bool guided() const;
  std::int64_t branches() const;
  int sequence_rank() const {
    return begin_.ring.rank * begin_.ulysses.degree + begin_.ulysses.rank;
  }
  /// Own rows of a micro-step, or with patch -1 of the whole picture.
  RowRuns own_rows(int patch) const { return rows_of(begin_.micro_steps, patch, sequence_rank()); }
  at::Tensor rows_view(const at::Tensor& latents, models::TokenRows rows) const;
  /// The rows' latents one below the other, [n, C, rows · patch_size, w].
  at::Tensor gather_rows(const at::Tensor& latents, const RowRuns& rows) const;
  void scatter_rows(const at::Tensor& latents, const RowRuns& rows, const at::Tensor& from) const;
  std::shared_ptr<tensor::Group> group(std::uint32_t id) const;
  tensor::Deadline deadline() const { return tensor::within(tools_.transfer_deadline); }

  void wait(const tensor::Work& work);
  /// The device waits, the work loop goes on.
  void wait_on_device(const tensor::Work& work);
  /// Before the host reads what the device makes: it waits, and shows life while the device waits
  /// for a peer. At once on a CPU. Throws when the epoch has ended, and at the transfers' deadline.
  void await_device();
  /// What the host does between two looks at the device, for one such wait.
  std::function<void()> pause_for_device();
  void note_wait(std::chrono::steady_clock::time_point start);
  /// Waits a second at most; false when the operation is still under way then.
  static bool wait_slice(const tensor::Work& work, tensor::Deadline last);
  int stage_before() const {
    return (begin_.stage.rank + begin_.stage.degree - 1) % begin_.stage.degree;
  }
  at::Tensor take_transfer(Place place, int stage);
  /// Receives the network's hidden states, what the stage before tells ahead of them, and what
  /// earlier stages left.
  at::Tensor take_hidden(const NetworkStep& step);
  /// To the next stage, and to later ones what they take up.
  void send_hidden(const NetworkStep& step, const at::Tensor& hidden);
  void prune_sends();
  /// Text of this job's shape, not filled.
  EncodedText room_for_text() const;
  void keep_caption(const models::Caption& caption, const at::Tensor& lengths);
  /// Batch items (branches × pictures) that a micro-step computes.
  wire::RowRange items_of(Place place) const;
  NetworkStep network_step(Place place) const;
  /// A step after the warm-up takes the whole picture at once, from an empty K,V store.
  bool is_refill(int step) const;
  /// Takes what the last stage sent of the step before.
  void take_latents(Place place);
  /// Own rows of the latents as the network takes them.
  at::Tensor network_input(Place place, const RowRuns& rows);
  /// All items' prediction once the last part of the batch is here, undefined before.
  at::Tensor join_parts(at::Tensor prediction, Place place);
  at::Tensor guide(at::Tensor prediction, Place place);
  at::Tensor rescale(const at::Tensor& guided, const at::Tensor& text, Place place);
  /// At the last stage, at the end: how many calls of each picture, branches together, its step
  /// cache has left out.
  void count_skips();
  void sample(int step, int patch, const at::Tensor& prediction);
  /// Brings the latents of all rows to the first `decoders` members of the rows group. Every member
  /// that holds latents or is one of them calls it.
  void collect_latents(int decoders);
  /// Pictures [n, 3, H, W] of [n, C, h, w] at the first decoder, undefined at the others.
  at::Tensor decode_together(const at::Tensor& latents);
  /// Videos, one by one and frame by frame (video_task.cpp).
  TaskResult decode_videos(wire::RowRange videos);
  void send_on(const at::Tensor& out, bool needed);
  std::string place_text(Place place) const;
  /// What the micro-step at hand has made for the next stage or the sampler.
  void require_finite_step(const at::Tensor& values, const char* what, Place place);
  /// What the host reads anyway: it waits for it.
  void require_finite(const at::Tensor& values, const std::string& what);
  wire::BlobRef publish(const std::string& name, std::string bytes,
                        std::vector<std::int64_t> shape);
  wire::BlobRef publish_latents();
  /// Forgets all but the newest few of its kind.
  wire::BlobRef keep_newest(std::deque<control::BlobId>& kind, wire::BlobRef blob);
  /// What is left for the controller at the end of a step: previews where they are asked for, and
  /// the own rows' latents and sampler history, so that the job can be taken up again.
  std::vector<wire::BlobRef> step_blobs(int step, int patch);
  std::vector<wire::BlobRef> progress_blobs(int step);
  std::optional<wire::BlobRef> publish_boundary();
  std::vector<std::pair<std::string, std::string>> picture_text(std::int64_t image) const;

  wire::BeginJob begin_;
  Tools tools_;
  std::unique_ptr<models::Sampler> sampler_;
  control::BlobBytes init_image_;
  std::unique_ptr<GuidanceRescale> rescale_;
  models::PictureSize size_;
  std::int64_t patch_size_;
  std::int64_t channels_;
  at::Tensor
      latents_;  // [n, C, h, w] float32; at first and last stage own rows count, at decoders all
  std::optional<NoiseSource> noise_;  // once a step has needed some
  at::Tensor step_noise_;             // of step noise_step_, or of the last one that needed it
  int noise_step_ = -1;
  std::vector<models::SamplerState> sampler_states_;  // one a micro-step, at the last stage
  LayerWatch layers_;                                 // of the micro-step at hand
  FiniteCheck finite_;
  std::unique_ptr<JobNetwork> network_;
  std::vector<at::Tensor> predicted_parts_;
  std::vector<std::int64_t> skipped_calls_;          // by picture; empty without a step cache
  std::map<std::pair<Place, int>, Transfer> inbox_;  // by the stage that sends it
  std::vector<tensor::Work> sends_;
  std::vector<control::BlobId> published_;  // nobody needs them after the job
  std::deque<control::BlobId> interim_;     // previews and latents of steps
  std::deque<control::BlobId> boundaries_;
  double peer_wait_seconds_ = 0;
  std::vector<wire::ClockSpan> waits_;
  std::vector<DeviceSpan> device_waits_;
  bool poisoned_ = false;
};

}  // namespace troupe::actors
