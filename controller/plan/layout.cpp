#include "controller/plan/layout.h"

#include <algorithm>

namespace troupe::plan {
namespace {

int size_of(const wire::RowRange& run) {
  return run.end - run.begin;
}

/// Returns the number of items of the first `first` of `parts` parts, as split_evenly makes them.
int first_parts(int count, int parts, int first) {
  return first * (count / parts) + std::min(first, count % parts);
}

/// Returns the part-th run of a run of rows.
wire::RowRange part_of(const wire::RowRange& rows, int parts, int part) {
  return {rows.begin + first_parts(size_of(rows), parts, part),
          rows.begin + first_parts(size_of(rows), parts, part + 1)};
}

}  // namespace

Layout layout_of(Method method, const std::vector<wire::RowRange>& patches, int ring, int ulysses) {
  Layout layout;
  layout.whole.assign(ring * ulysses, 0);
  const int count = static_cast<int>(patches.size());
  const bool waves = method == Method::distrifusion;
  const int micro_steps = waves ? (count + ring - 1) / ring : count;
  for (int micro = 0; micro < micro_steps; ++micro) {
    std::vector<wire::RowRange> shares;
    std::vector<bool> busy;
    for (int r = 0; r < ring; ++r) {
      const int patch = waves ? micro * ring + r : micro;
      busy.push_back(patch < count);
      for (int u = 0; u < ulysses; ++u) {
        if (patch >= count) {
          shares.push_back({0, 0});
        } else if (waves) {
          shares.push_back(part_of(patches[patch], ulysses, u));
        } else {
          shares.push_back(part_of(patches[patch], ring * ulysses, r * ulysses + u));
        }
        layout.whole[r * ulysses + u] += size_of(shares.back());
      }
    }
    layout.shares.push_back(std::move(shares));
    layout.busy.push_back(std::move(busy));
  }
  return layout;
}

std::vector<LeadRows> lead_rows(Method method, const std::vector<wire::RowRange>& patches, int ring,
                                int ulysses) {
  std::vector<LeadRows> micro_steps;
  const bool waves = method == Method::distrifusion;
  const int together = waves ? ring : 1;
  const int parts = waves ? ulysses : ring * ulysses;
  const int count = static_cast<int>(patches.size());
  for (int first = 0; first < count; first += together) {
    const int rows = size_of(patches[first]);
    const int last = std::min(count, first + together) - 1;
    micro_steps.push_back({first_parts(rows, parts, 1), first_parts(rows, parts, ulysses),
                           patches[last].end - patches[first].begin});
  }
  return micro_steps;
}

int heads_of(int heads, const mesh::Degrees& degrees, int tp_rank, int ulysses_rank) {
  const int own = size_of(part_of({0, heads}, degrees.tp, tp_rank));
  return size_of(part_of({0, own}, degrees.ulysses, ulysses_rank));
}

}  // namespace troupe::plan
