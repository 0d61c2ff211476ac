#pragma once
#include <algorithm>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "controller/mesh/mesh.h"
#include "controller/plan/stages.h"
#include "models/spec/model_spec.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/job.h"

namespace troupe::plan {

/// Bytes that one actor of the plan needs; `text`, `picture` and `vae` are transient and never at
/// their peak together.
struct ActorMemory {
  std::uint64_t weights = 0;      // its stage's shard, in the compute type
  std::uint64_t second = 0;       // the same of the second of two transformers, beside the peak:
                                  // where there is room for it both stay
  std::uint64_t kv = 0;           // K,V of its blocks and heads, kept over steps, and caption
  std::uint64_t activations = 0;  // hidden states, transfers, latents: an upper estimate
  std::uint64_t text = 0;         // text encoders while they run: the largest block
  std::uint64_t encoders = 0;     // all of their weights, beside the peak: where there is room for
                                  // them they stay
  std::uint64_t picture = 0;      // one to begin with, while it is decoded, resized and encoded
  std::uint64_t vae = 0;          // decoder weights and its largest activations
  std::uint64_t decoder = 0;      // weights of the decoder, which stay when they have been read
  std::uint64_t peak() const;
};

/// A tensor-plane group that the plan needs, over world ranks.
struct GroupPlan {
  /// Kind of group. `caption`: a replica. `edge`: to the next stage. `feedback`: from the last
  /// stage to the first, for stepped latents. `heads`: ulysses × tp. `stage`: ring × ulysses × tp.
  /// `rows`: the ranks that decode, then the others that hold latents. `vae`: the ranks that
  /// decode, in the order of their rows. `skip`: from a stage to one behind the next, for hidden
  /// states that blocks there take up again.
  enum class Role {
    caption,
    edge,
    feedback,
    cfg,
    ulysses,
    ring,
    tp,
    heads,
    stage,
    rows,
    vae,
    skip
  };
  std::uint32_t id = 0;
  Role role = Role::edge;
  std::string name;
  std::vector<int> ranks;     // edges: {sender, receiver}
  std::int64_t channels = 0;  // channels of a token on a skip edge
  bool operator==(const GroupPlan&) const = default;
};
const char* to_string(GroupPlan::Role role);

/// Plan of one request on one mesh: every shape and every place, before anything is loaded. A pure
/// value.
struct Plan {
  wire::ImageRequest
      request;  // with sizes filled in: height and width as computed, output_* as they come out
  mesh::Degrees degrees;
  std::vector<Stage> stages;            // by pp rank
  std::vector<wire::RowRange> patches;  // token rows; one entry = whole picture
  /// Token rows of each sp rank, by micro-step of a step that goes patch by patch. A patch each;
  /// under distrifusion with ring > 1, as many patches as ring ranks side by side.
  std::vector<wire::RowShares> micro_steps;
  std::vector<wire::RowRange> images;  // by dp rank: slice of prompts × images_per_prompt
  std::vector<GroupPlan> groups;
  std::vector<ActorMemory> memory;  // by world rank
  std::vector<std::string> warnings;
  int synchronous_steps = 0;  // first steps, which take the whole picture at once
  /// Batch items (branches × pictures) of an actor, by dp rank, that a step of the whole picture
  /// takes one part after another, to fill the pipeline and to let others, or a cancel, come
  /// between.
  std::vector<std::vector<wire::RowRange>> batch_parts;
  /// Pictures of the slice of each dp rank that are decoded one part after another, likewise.
  std::vector<std::vector<wire::RowRange>> decode_parts;
  std::int64_t latent_channels = 0;
  std::int64_t latent_height = 0;
  std::int64_t latent_width = 0;
  std::int64_t token_rows = 0;
  std::int64_t token_columns = 0;
  bool guidance = false;            // two branches are computed
  bool encodes_negative = false;    // of a request that brings its prompts' text along
  int vae_degree = 1;               // actors of a replica that decode together
  std::vector<int> encoder_places;  // by text encoder: the actor of a replica that runs it
  /// Steps as they were asked for. request.steps are the calls of the model that are computed,
  /// which is what every other step of a plan counts: some samplers call it more often than once a
  /// step (models::model_calls), and an initial picture's strength leaves the first ones out.
  int sampler_steps = 0;
  int skipped_steps = 0;  // calls that the strength leaves out
  /// First step that the second of two transformers computes; the number of steps where none is.
  int second_from = 0;
  /// States of the files of request.loras; filled in by who has looked at them.
  std::vector<std::uint64_t> lora_fingerprints;

  /// States of the folders of request.controlnets, likewise.
  std::vector<std::uint64_t> controlnet_fingerprints;

  /// Returns whether actors keep keys and values, or what a step cache adds, for later steps.
  bool keeps_values() const {
    return request.step_cache != StepCacheRule::none ||
           (patches.size() > 1 && request.exchange != PatchExchange::naive);
  }
  wire::StepKind step_kind(int step) const {
    // What one transformer left is of no use to the other.
    if (step > 0 && step == second_from && keeps_values()) return wire::StepKind::refill;
    if (std::ranges::find(request.refill_steps, step) != request.refill_steps.end())
      return wire::StepKind::refill;
    return step < synchronous_steps ? wire::StepKind::whole : wire::StepKind::patches;
  }
  /// True when the step takes the whole picture at once, not patch by patch.
  bool is_whole(int step) const { return wire::is_whole(step_kind(step)); }
  /// Returns the number of steps that take the whole picture at once.
  int whole_steps() const {
    int count = 0;
    for (int step = 0; step < request.steps; ++step)
      count += is_whole(step) ? 1 : 0;
    return count;
  }
  /// Returns what the pictures are that the request brings and that are encoded before the first
  /// step.
  const char* sent_pictures() const {
    if (request.images.empty()) return "picture to begin with";
    return request.num_frames > 1 ? "frames to begin with" : "pictures to edit";
  }
  /// True when prompts, or negative ones alone, are encoded; else the request brings all of the
  /// text encoders' output.
  bool encodes_text() const { return request.prompt_embeds.empty() || encodes_negative; }
  /// True when pictures are made; else the final latents are what comes back.
  bool decodes() const { return request.output_type == OutputType::picture; }
  /// True when the autoencoder's decoder is of use: for pictures, or for previews on the way.
  bool needs_decoder() const {
    return decodes() ||
           (request.progress_interval > 0 && request.progress_content == ProgressContent::preview);
  }
  int picture_count() const { return images.empty() ? 0 : images.back().end; }
  int branches_per_actor() const { return guidance && degrees.cfg == 1 ? 2 : 1; }
  /// Returns the rank that projects the text of its dp replica for all of it: first stage, cfg rank
  /// 0.
  int text_rank(int dp) const;
  /// Returns the ranks that run each text encoder of a dp replica.
  std::vector<int> encoder_ranks(int dp) const;
  /// Returns the rank that ends the decoding of its dp replica's pictures: last stage, cfg rank 0,
  /// its first rank.
  int decode_rank(int dp) const;
  /// Returns the ranks that decode the pictures of a dp replica, in the order of their rows;
  /// decode_rank first.
  std::vector<int> decoders(int dp) const;
  /// Returns the holders of final latents in a dp replica: last stage, cfg rank 0, tp rank 0, by sp
  /// rank.
  std::vector<int> latent_holders(int dp) const;
  const GroupPlan* group_with(GroupPlan::Role role, int rank, int position) const;
};

/// Returns the token rows of a sequence rank in a step of the whole picture: its run of each
/// micro-step, in order, empty ones left out.
std::vector<wire::RowRange> rows_of_rank(const Plan& plan, int sequence_rank);

/// Plans a request or refuses it with one line naming field, value and reason
/// (std::invalid_argument).
Plan make_plan(const spec::ModelSpec& model, const wire::ImageRequest& request,
               const wire::Parallelism& parallelism);

/// Returns the plan as `troupe plan` prints it.
std::string to_text(const Plan& plan);
nlohmann::json to_json(const Plan& plan);

}  // namespace troupe::plan
