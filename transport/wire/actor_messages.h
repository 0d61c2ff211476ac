#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "transport/wire/group_messages.h"
#include "transport/wire/job.h"
#include "transport/wire/kind.h"
#include "transport/wire/session.h"
#include "transport/wire/task_messages.h"

namespace troupe::wire {

/// A LoRA, and the state of its file when the job was planned (models/spec/fingerprint.h).
struct LoraFile {
  Lora lora;
  std::uint64_t fingerprint = 0;  // 0 = not to be checked

  bool operator==(const LoraFile&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(lora, fingerprint);
  }
};

/// A ControlNet beside the model's own, and the state of its folder when the job was planned.
struct ControlNetFolder {
  std::string folder;
  std::uint64_t fingerprint = 0;  // 0 = not to be checked

  bool operator==(const ControlNetFolder&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(folder, fingerprint);
  }
};

/// controller → actor: keep this part of the model. Answered by StageLoaded or Failure.
struct LoadStage {
  static constexpr Kind kKind = Kind::load_stage;
  std::uint64_t deployment = 0;
  std::string model;              // folder
  std::uint64_t fingerprint = 0;  // of the folder when the job was planned; 0 = not to be checked
  ComputeType dtype = ComputeType::float32;
  WeightChoice weight_dtype = WeightChoice::as_computed;  // of the products of tokens
  OffloadChoice offload = OffloadChoice::none;
  std::int32_t first_block = 0;
  std::int32_t last_block = 0;  // exclusive
  bool embeds = false;
  bool projects = false;
  std::int32_t tp_rank = 0;  // number of the shard of the blocks' heads and feed-forward columns
  std::int32_t tp_degree = 1;
  std::vector<LoraFile> loras;           // added to the weights in this order
  std::uint64_t prompt_cache_bytes = 0;  // of encoded prompts that are kept; 0 = none is
  bool keeps_both = false;  // of two transformers; else the one that computes is in memory
  std::vector<ControlNetFolder> controlnets = {};  // beside the model's own, in this order

  template <class Archive>
  void serialize(Archive& ar) {
    ar(deployment, model, fingerprint, dtype, weight_dtype, offload, first_block, last_block,
       embeds, projects, tp_rank, tp_degree, loras, prompt_cache_bytes, keeps_both, controlnets);
  }
};

struct StageLoaded {
  static constexpr Kind kKind = Kind::stage_loaded;
  std::uint64_t weight_bytes = 0;
  double seconds = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(weight_bytes, seconds);
  }
};

/// A run of token rows of the picture.
struct RowRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(begin, end);
  }
  bool operator==(const RowRange&) const = default;
};

/// Place of an actor on an axis.
struct AxisPlace {
  std::int32_t rank = 0;
  std::int32_t degree = 1;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(rank, degree);
  }
  bool operator==(const AxisPlace&) const = default;
};

/// Token rows that each rank of a sequence group computes in one micro-step; may be empty runs.
struct RowShares {
  std::vector<RowRange> of_rank;  // by sp rank = ring rank · ulysses degree + ulysses rank

  template <class Archive>
  void serialize(Archive& ar) {
    ar(of_rank);
  }
  bool operator==(const RowShares&) const = default;
};

/// Latents and sampler history of some rows of some pictures at the end of a step: a blob of
/// float32 [1 + history, pictures, channels, latent rows, latent width], the latents first.
struct BoundaryPiece {
  BlobRef blob;
  std::int32_t first_image = 0;
  std::int32_t last_image = 0;  // exclusive
  std::vector<RowRange> rows;   // token rows, one run below the other

  template <class Archive>
  void serialize(Archive& ar) {
    ar(blob, first_image, last_image, rows);
  }
};

/// Kind of a step: patch by patch, or the whole picture at once; the latter also from an empty K,V
/// store, where a stale method was resumed after a loss.
enum class StepKind : std::uint8_t { patches, whole, refill };
constexpr bool is_valid(StepKind kind) {
  return kind <= StepKind::refill;
}
constexpr bool is_whole(StepKind kind) {
  return kind != StepKind::patches;
}

/// controller → actor: a job begins here. What the actor needs to run its tasks; every shape
/// follows from it.
struct BeginJob {
  static constexpr Kind kKind = Kind::begin_job;
  std::uint64_t job = 0;
  std::string name;  // in texts for people: "job 9", "batch 9 (jobs 3, 5)"
  std::uint64_t deployment = 0;
  std::uint64_t epoch = 0;
  ImageRequest request;
  std::int32_t first_image = 0;  // this dp replica's slice of prompts × images_per_prompt
  std::int32_t last_image = 0;   // exclusive
  AxisPlace stage;               // pp
  AxisPlace cfg;                 // rank 0 = negative branch, 1 = positive
  AxisPlace ring;
  AxisPlace ulysses;
  AxisPlace tp;
  std::vector<StepKind> steps;         // kind of each step
  std::vector<RowShares> micro_steps;  // for a step that goes patch by patch, in order
  /// Batch items (branches × pictures) that a step of the whole picture computes one after another,
  /// so that the stages of a pipeline have something to do at once, and no part takes long.
  std::vector<RowRange> batch_parts;
  /// Pictures of the slice, from its first, that are decoded one part after another.
  std::vector<RowRange> decode_parts;
  JobGroups groups;
  bool keep_encoders = false;  // text encoders of the deployment that were used here stay
  std::int32_t caption_rank = 0;
  std::int32_t caption_root = 0;            // rank in that group that projects the text
  std::vector<std::int32_t> encoder_ranks;  // rank in that group that runs each text encoder
  std::int32_t image_root = 0;    // the first decoder, rank in that group: it tells the others the
                                  // encoded picture to start from
  std::int32_t row_rank = -1;     // in the rows group, the decoders first; -1 = not a member
  std::int32_t row_decoders = 1;  // how many of that group's first ranks decode
  std::vector<std::int32_t> row_holders;  // ranks in the rows group, by sp rank
  AxisPlace vae;                          // this decoder's place; degree 0 = it decodes nothing
  std::int32_t first_step = 0;            // > 0: the job is resumed here, from these pieces
  std::vector<BoundaryPiece> boundary;
  std::int32_t sampler_steps = 0;  // as asked for; request.steps are calls of the model
  std::int32_t skipped_steps = 0;  // calls before step 0: strength leaves them out

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job, name, deployment, epoch, request, first_image, last_image, stage, cfg, ring, ulysses,
       tp, steps, micro_steps, batch_parts, decode_parts, groups, keep_encoders, caption_rank,
       caption_root, encoder_ranks, image_root, row_rank, row_decoders, row_holders, vae,
       first_step, boundary, sampler_steps, skipped_steps);
  }
};

/// controller → actor: forget this job's state. Answered by ActorJobStats.
struct EndJob {
  static constexpr Kind kKind = Kind::end_job;
  std::uint64_t job = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(job);
  }
};

/// Counts of a job's calls where an actor was to record them (docs/gpu.md).
struct GraphStats {
  bool asked = false;
  std::uint64_t recorded = 0;
  std::uint64_t replayed = 0;
  std::string why_plain;  // why calls were not recorded; empty where all were

  template <class Archive>
  void serialize(Archive& ar) {
    ar(asked, recorded, replayed, why_plain);
  }
};

/// Cost of a job at one actor. Seconds from the first command to the last one.
struct ActorJobStats {
  static constexpr Kind kKind = Kind::actor_job_stats;
  double busy_seconds = 0;             // computing
  double peer_wait_seconds = 0;        // for tensors of other actors
  double controller_wait_seconds = 0;  // empty mailbox while tasks of the job were to come
  double text_seconds = 0;
  double denoise_seconds = 0;
  double decode_seconds = 0;
  std::uint64_t tensor_bytes_sent = 0;
  std::uint64_t tensor_bytes_received = 0;
  std::map<std::uint32_t, std::uint64_t> sent_by_group;  // tensor bytes, by the group's id
  std::map<std::string, std::uint64_t> sent_by_layer;    // by kind of layer, of a U-Net's patches
  /// Calls that a step cache was asked about, and calls that it left out, by step
  /// (actors/stage/network.h). Counted by one rank for all that decide together, so that ranks add
  /// up.
  std::uint64_t cache_calls = 0;
  std::vector<std::uint32_t> cache_skips;
  /// Texts that its text encoders computed, and that they had computed before and kept.
  std::uint64_t prompts_encoded = 0;
  std::uint64_t prompts_from_cache = 0;
  std::uint64_t control_bytes_sent = 0;
  std::uint64_t control_bytes_received = 0;
  std::uint64_t weight_bytes = 0;
  std::uint64_t encoder_bytes = 0;  // weights of text encoders that are still there at its end
  std::uint64_t kv_bytes = 0;
  std::uint64_t peak_memory_bytes = 0;  // highest resident set of the process while the job ran
  GraphStats graphs;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(busy_seconds, peer_wait_seconds, controller_wait_seconds, text_seconds, denoise_seconds,
       decode_seconds, tensor_bytes_sent, tensor_bytes_received, sent_by_group, sent_by_layer,
       cache_calls, cache_skips, prompts_encoded, prompts_from_cache, control_bytes_sent,
       control_bytes_received, weight_bytes, encoder_bytes, kv_bytes, peak_memory_bytes, graphs);
  }
};

/// controller → actor, second lane: the epoch is over; end all its operations and drop its jobs and
/// groups. Answered by Done once nothing of the epoch runs any more.
struct AbortEpoch {
  static constexpr Kind kKind = Kind::abort_epoch;
  std::uint64_t epoch = 0;
  std::string why;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(epoch, why);
  }
};

/// controller → actor: forget what is kept of a deployment; with `encoders_alone` only its text
/// encoders, which are read anew from then on.
struct Unload {
  static constexpr Kind kKind = Kind::unload;
  std::uint64_t deployment = 0;
  bool encoders_alone = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(deployment, encoders_alone);
  }
};

/// controller → actor or node agent: end your process.
struct Shutdown {
  static constexpr Kind kKind = Kind::shutdown;

  template <class Archive>
  void serialize(Archive&) {}
};

}  // namespace troupe::wire
