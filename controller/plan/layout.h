#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "controller/mesh/mesh.h"
#include "controller/plan/plan.h"
#include "models/spec/unet_spec.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/job.h"

namespace troupe::plan {

/// Returns the mesh that a job asks for; its stages and decoders are no axes.
inline mesh::Degrees degrees_of(const wire::Parallelism& asked) {
  return {.dp = asked.dp,
          .cfg = asked.cfg,
          .pp = asked.pp,
          .ring = asked.ring,
          .ulysses = asked.ulysses,
          .tp = asked.tp};
}

/// Returns what a job asks for that wants this mesh, `vae` decoders, and stages split by cost.
inline wire::Parallelism parallelism_of(const mesh::Degrees& degrees, int vae = 1) {
  return {.dp = degrees.dp,
          .cfg = degrees.cfg,
          .pp = degrees.pp,
          .ulysses = degrees.ulysses,
          .ring = degrees.ring,
          .tp = degrees.tp,
          .vae = vae};
}

/// Token rows that each sequence rank computes in each micro-step of a step; sequence rank = ring
/// rank × ulysses + ulysses rank. The layout follows from the request's patches and the degrees
/// alone, so costs can be worked out for meshes that nobody has planned yet.
struct Layout {
  /// Rows of one run, possibly none: [micro-step][sequence rank]. A micro-step is a patch, of
  /// distrifusion a wave of `ring` patches.
  std::vector<std::vector<wire::RowRange>> shares;
  /// Rows of a synchronous step by sequence rank: all of its runs together.
  std::vector<int> whole;
  /// True where a ring rank has a patch: in each micro-step of distrifusion. Else all true.
  std::vector<std::vector<bool>> busy;

  int micro_steps() const { return static_cast<int>(shares.size()); }
  int rows(int micro, int sequence_rank) const {
    const auto& run = shares[micro][sequence_rank];
    return run.end - run.begin;
  }
};

/// Divides rows among ranks. `patches` as in the plan: one entry where the method is exact.
Layout layout_of(Method method, const std::vector<wire::RowRange>& patches, int ring, int ulysses);

/// Rows of one micro-step as costs need them: of sequence rank 0, which has the most, of its ring
/// block, of all ranks.
struct LeadRows {
  int own = 0;
  int block = 0;
  int all = 0;
};

/// Returns the rows by micro-step, as layout_of has them, without the table of all ranks.
std::vector<LeadRows> lead_rows(Method method, const std::vector<wire::RowRange>& patches, int ring,
                                int ulysses);

/// Returns the number of heads that (tp rank, ulysses rank) attends with: split over tp, then over
/// ulysses, remainders first.
int heads_of(int heads, const mesh::Degrees& degrees, int tp_rank, int ulysses_rank);

/// Splits `rows` token rows into `patches` runs, top to bottom; remainders go to the first ones.
/// Throws std::invalid_argument when there are more patches than rows.
std::vector<wire::RowRange> split_rows(int rows, int patches);

/// Splits `count` items over `parts` as evenly as whole items allow, remainders first; parts may
/// come out empty.
std::vector<wire::RowRange> split_evenly(int count, int parts);

/// Returns the batch items (branches × pictures of an actor) that a step of the whole picture takes
/// one part after another: two parts a stage at most, which fill the pipeline, and one where there
/// is one stage; more where a part would have more than `most` items.
std::vector<wire::RowRange> batch_parts(int batch, int pp, int most);

/// Sets the groups of a plan whose degrees, decoders and stages stand: along the mesh's axes, the
/// edges between stages, and those that captions, branches and decoded rows travel in.
void set_groups(Plan& plan, const spec::ModelSpec& model);

/// Returns the actor of a replica, counted from 0, that runs each of the text encoders that cost so
/// much: the dearest first, each at the actor that has least to do so far, the first of them. An
/// encoder that costs nothing, such as one that is absent, is at 0.
std::vector<int> encoder_places(const std::vector<double>& costs, int actors);

/// Returns the cost of the text encoders at the busiest of these actors.
double busiest_encoder(const std::vector<double>& costs, int actors);

/// Returns the bytes that a rank sends for its replica's text: its encoders' output to the rank
/// that projects it, and from there projected states, pooled vectors and lengths to all others.
std::uint64_t caption_bytes(const Plan& plan, const spec::ModelSpec& model, int rank);

/// Rows of a U-Net's patches at each level, and the bytes that each layer tells of a patch.
class UNetShares {
 public:
  using Bytes = std::uint64_t;

  UNetShares(const Plan& plan, const spec::UNetSpec& unet);

  /// Returns the layers that tell something of a patch, in model order.
  const std::vector<spec::UNetSite>& sites() const { return sites_; }
  int patches() const { return static_cast<int>(plan_.patches.size()); }
  /// Returns the bytes that a layer tells of one patch and a batch.
  Bytes bytes(const spec::UNetSite& site, int patch, Bytes batch) const;

 private:
  const Plan& plan_;
  std::vector<spec::UNetSite> sites_;
  std::vector<std::vector<std::int64_t>> begins_;  // by level
  std::vector<std::int64_t> widths_;
};

/// Returns the bytes of an element as the request computes.
std::uint64_t element_size(const Plan& plan);

/// Returns the bytes with what lies behind them in a buffer of shares.
std::uint64_t aligned(std::uint64_t bytes);

/// Returns the patches of a sequence rank.
wire::RowRange patches_of(const Plan& plan, int sequence_rank);

}  // namespace troupe::plan
