#pragma once
#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/group_table.h"
#include "actors/parallel/sequence_attention.h"
#include "actors/progress.h"
#include "actors/rows.h"
#include "actors/stage.h"
#include "models/samplers/sampler.h"
#include "transport/control/blob_store.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

/// What running a task left behind: blobs to fetch, and words for the user.
struct TaskResult {
  std::vector<wire::BlobRef> blobs;
  std::vector<std::string> warnings;
};

/// One job at one actor: its patches' latents, stale K,V, caption K,V, sampler history and the
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
  };

  /// Which micro-step: a patch, or a part of the batch of a whole picture (patch -1).
  struct Place {
    int step = 0;
    int patch = -1;
    int part = 0;
    auto operator<=>(const Place&) const = default;
  };

  /// `init_latents` is undefined, or float32 [n, C, h, w] of the whole batch. Throws one line when
  /// something the request asks for cannot be had (sampler options, memory).
  Job(wire::BeginJob begin, Tools tools, const at::Tensor& init_latents);
  ~Job();

  const wire::BeginJob& begin() const { return begin_; }

  /// Posts the receive of a transfer that a micro-step will consume here.
  void post_receive(Place place);
  TaskResult encode_text();
  TaskResult micro_step(Place place);
  TaskResult decode();

  std::uint64_t kv_bytes() const;
  double peer_wait_seconds() const { return peer_wait_seconds_; }

 private:
  struct Transfer {
    at::Tensor tensor;
    tensor::Work work;
  };
  bool first_stage() const { return begin_.stage.rank == 0; }
  bool last_stage() const { return begin_.stage.rank + 1 == begin_.stage.degree; }
  std::int64_t images() const { return begin_.last_image - begin_.first_image; }
  std::int64_t branches() const;
  int sequence_rank() const {
    return begin_.ring.rank * begin_.ulysses.degree + begin_.ulysses.rank;
  }
  int sequence_degree() const { return begin_.ring.degree * begin_.ulysses.degree; }
  /// Own rows of a micro-step, or with patch -1 of the whole picture.
  RowRuns own_rows(int patch) const { return rows_of(begin_.micro_steps, patch, sequence_rank()); }
  at::Tensor rows_view(const at::Tensor& latents, models::TokenRows rows) const;
  /// The rows' latents one below the other, [n, C, rows · patch_size, w].
  at::Tensor gather_rows(const at::Tensor& latents, const RowRuns& rows) const;
  void scatter_rows(const at::Tensor& latents, const RowRuns& rows, const at::Tensor& from) const;
  std::shared_ptr<tensor::Group> group(std::uint32_t id) const;
  tensor::Deadline deadline() const { return tensor::within(tools_.transfer_deadline); }

  void wait(const tensor::Work& work);
  /// Waits a second at most; false when the operation is still under way then.
  static bool wait_slice(const tensor::Work& work, tensor::Deadline last);
  at::Tensor take_transfer(Place place);
  void prune_sends();
  void keep_caption(const at::Tensor& states, const at::Tensor& lengths);
  std::unique_ptr<SequenceAttention> make_attention();
  /// Batch items (branches × pictures) that a micro-step computes.
  wire::RowRange items_of(Place place) const;
  at::Tensor embed_patch(Place place, const RowRuns& rows);
  at::Tensor run_blocks(at::Tensor hidden, Place place);
  at::Tensor project(const at::Tensor& hidden, const RowRuns& rows) const;
  /// All items' prediction once the last part of the batch is here, undefined before.
  at::Tensor join_parts(at::Tensor prediction, Place place);
  at::Tensor guide(at::Tensor prediction);
  void sample(int step, int patch, const at::Tensor& prediction);
  /// Brings the latents of all rows to the first `decoders` members of the rows group. Every member
  /// that holds latents or is one of them calls it.
  void collect_latents(int decoders);
  /// Pictures [n, 3, H, W] at the first decoder, undefined at the others.
  at::Tensor decode_together();
  void send_on(const at::Tensor& out, bool needed);
  std::string place_text(Place place) const;
  void require_finite(const at::Tensor& values, const std::string& what) const;
  wire::BlobRef publish(const std::string& name, std::string bytes,
                        std::vector<std::int64_t> shape);
  wire::BlobRef publish_latents();
  wire::BlobRef keep_interim(wire::BlobRef blob);
  std::vector<wire::BlobRef> progress_blobs(int step, int patch);
  std::vector<std::pair<std::string, std::string>> picture_text(std::int64_t image) const;

  wire::BeginJob begin_;
  Tools tools_;
  std::unique_ptr<models::Sampler> sampler_;
  models::PictureSize size_;
  std::int64_t patch_size_;
  std::int64_t columns_;
  std::int64_t channels_;
  at::Tensor
      latents_;  // [n, C, h, w] float32; at first and last stage own rows count, at decoders all
  std::vector<models::SamplerState> sampler_states_;  // one a micro-step, at the last stage
  std::unique_ptr<models::CaptionCache> caption_;
  std::unique_ptr<SequenceAttention> attention_;
  std::unique_ptr<models::TensorParallelPort> sums_;
  std::unique_ptr<models::StepCondition> condition_;
  std::pair<int, std::int64_t> condition_of_{-1, 0};  // its step and batch
  std::vector<at::Tensor> predicted_parts_;
  std::map<Place, Transfer> inbox_;
  std::vector<tensor::Work> sends_;
  std::vector<control::BlobId> published_;  // nobody needs them after the job
  std::deque<control::BlobId> interim_;  // previews and latents of steps: only the newest are kept
  double peer_wait_seconds_ = 0;
};

}  // namespace troupe::actors
