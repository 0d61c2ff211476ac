#include "controller/plan/layout.h"

#include "controller/plan/patches.h"

namespace troupe::plan {
namespace {

int size_of(const wire::RowRange& run) {
  return run.end - run.begin;
}

/// The part-th run of a run of rows.
wire::RowRange part_of(const wire::RowRange& rows, int parts, int part) {
  const auto own = split_evenly(size_of(rows), parts)[part];
  return {rows.begin + own.begin, rows.begin + own.end};
}

}  // namespace

Layout layout_of(const std::string& method, const std::vector<wire::RowRange>& patches, int ring,
                 int ulysses) {
  Layout layout;
  layout.whole.assign(ring * ulysses, 0);
  const int count = static_cast<int>(patches.size());
  const bool waves = method == "distrifusion";
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

int heads_of(int heads, const mesh::Degrees& degrees, int tp_rank, int ulysses_rank) {
  const int own = size_of(split_evenly(heads, degrees.tp)[tp_rank]);
  return size_of(split_evenly(own, degrees.ulysses)[ulysses_rank]);
}

}  // namespace troupe::plan
