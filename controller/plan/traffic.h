#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "controller/plan/plan.h"

namespace troupe::plan {

/// Bytes that one world rank sends over the tensor plane in one whole job, by role of group:
/// caption, edge, feedback, cfg, ulysses, ring, tp, stage, heads, rows, vae. Roles without traffic
/// are absent.
struct RankTraffic {
  std::map<std::string, std::uint64_t> sent;
  /// Bytes of a U-Net's patches by kind of layer: convolution, group norm, attention. They are in
  /// `sent` as well, under "stage", there with what lies between them in a buffer.
  std::map<std::string, std::uint64_t> by_layer;

  std::uint64_t of(const std::string& role) const;
  std::uint64_t total() const;
};

/// Predicts the bytes exactly, by world rank, from shapes alone: uneven shards of rows and heads
/// are counted as they are. README.md has the formulas. Not in here: what step caches decide
/// by, and what is computed anew after a loss. Pictures and latents for clients leave by another
/// way.
std::vector<RankTraffic> predict_traffic(const Plan& plan, const spec::ModelSpec& model);

/// Returns the bytes that `rank` of `size` sends in one all-reduce of `elements`: to each other
/// rank that one's run, and its own reduced run to all others; rank r owns elements [n·r/N,
/// n·(r+1)/N).
std::uint64_t all_reduce_bytes(std::uint64_t elements, std::uint64_t element_size, int size,
                               int rank);

/// Returns the bytes that a rank sends to agree on the moments of guidance rescale in one
/// micro-step: float64 [patches, pictures of the replica, 5] over the stage (ring × ulysses × tp).
std::uint64_t rescale_bytes(const Plan& plan, const mesh::Coordinates& at, int patches);

/// Numbers of latents that a replica makes of each picture that it encodes in the request's size:
/// of one distribution a sample, or where each picture has a seed of its own as many as it makes; 0
/// where there is no such picture.
struct EncodedPictures {
  std::uint64_t begun = 0;   ///< samples of the picture to begin with
  std::uint64_t beside = 0;  ///< samples of the picture whose channels stand beside the latents

  /// Number of pictures that are encoded.
  int count() const { return (begun > 0 ? 1 : 0) + (beside > 0 ? 1 : 0); }
};
EncodedPictures encoded_pictures(const Plan& plan, const spec::ModelSpec& model, int dp);

/// Returns the bytes of those, as they go to each other rank of a replica: float32, with the
/// channels of a mask.
std::uint64_t encoded_picture_bytes(const Plan& plan, const spec::ModelSpec& model, int dp);

/// One row of the papers' cost table: bytes of one step on one device, all layers, as orders of p
/// tokens × h width, for N devices of that method alone.
struct PaperOrder {
  const char* method;
  const char* formula;
  bool overlaps;
  double bytes = 0;
};

/// Returns the papers' cost table. Source: PipeFusion, table 1. `tokens` with the batch in it.
std::vector<PaperOrder> paper_orders(double tokens, double width, int layers, int devices,
                                     double element_size);

/// Returns the bytes that ranks send until the latents are done: the text, guided branches'
/// predictions, and under `stage` what patches tell each other, which `by_layer` has by kind of
/// layer.
std::vector<RankTraffic> unet_traffic(const Plan& plan, const spec::ModelSpec& model);

/// Bytes that one rank tells other patches in a step of a kind, by kind of layer.
struct StepTraffic {
  std::string steps;  ///< "synchronous", "stale" or "last"
  int count = 0;      ///< number of such steps
  std::map<std::string, std::uint64_t> by_layer;
};
/// Returns the bytes that a rank tells other patches; empty where nobody shares the patches.
std::vector<StepTraffic> unet_step_traffic(const Plan& plan, const spec::ModelSpec& model,
                                           int rank);

}  // namespace troupe::plan
