#pragma once
#include <string>
#include <vector>

#include "controller/mesh/mesh.h"
#include "transport/wire/actor_messages.h"

namespace troupe::plan {

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

}  // namespace troupe::plan
