// Weights, keys and values laid out in the order in which the products read them.
#pragma once

#include "kernels/simd/gemm.inl.h"

namespace {

using troupe::kernels::simd::RowRun;

inline std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

std::int64_t packed_keys_size(std::int64_t count, std::int64_t width) {
  return round_up(count, kPanel) * width;
}

std::int64_t packed_values_size(std::int64_t count, std::int64_t width) {
  return count * round_up(width, kLanes);
}

/// `limit` floats from p on; what stands before p + limit can be read where kWide.
template <bool kWide>
inline Vec load_limited(const float* p, int limit) {
  if (limit >= kLanes) return load(p);
  return kWide ? load_last(p, limit) : load_part(p, limit);
}

/// A vector of a row of a run from `column` on; lanes past `limit` are 0. kWide: rows have at least
/// kLanes columns.
template <bool kMoved, bool kWide>
inline Vec run_lanes(const RowRun& run, std::int64_t row, std::int64_t column, int limit) {
  const Vec now = load_limited<kWide>(run.rows + row * run.stride + column, limit);
  if constexpr (!kMoved) return now;
  const Vec before = load_limited<kWide>(run.older + row * run.older_stride + column, limit);
  return now + run.alpha * (now - before);
}

/// One step of a transposition: rows `kStep` apart exchange their halves.
template <int kStep>
inline void transpose_step(Vec* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) {
    if (i & kStep) continue;
    const Vec a = rows[i], b = rows[i + kStep];
    rows[i] = Lanes::lower_halves<kStep>(a, b);
    rows[i + kStep] = Lanes::upper_halves<kStep>(a, b);
  }
  if constexpr (kStep > 1) transpose_step<kStep / 2>(rows);
}

/// Makes up to kLanes rows columns of a panel, from `target` on. If a whole vector fits, the
/// columns after `count` get zeros, which later rows replace.
template <bool kMoved>
void pack_columns(const RowRun& run, std::int64_t row, int count, std::int64_t width, bool whole,
                  float* target) {
  for (std::int64_t column = 0; column < width;) {
    const int limit = width - column < kLanes ? static_cast<int>(width - column) : kLanes;
    if (limit < kLanes && width >= kLanes) {
      column = width - kLanes;
      continue;
    }
    Vec rows[kLanes];
    if (count == kLanes) {
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i)
        rows[i] = run_lanes<kMoved, false>(run, row + i, column, limit);
    } else {
      for (int i = 0; i < kLanes; ++i)
        rows[i] = i < count ? run_lanes<kMoved, false>(run, row + i, column, limit) : Vec{};
    }
    transpose_step<kLanes / 2>(rows);
    for (int i = 0; i < limit; ++i) {
      float* to = target + (column + i) * kPanel;
      if (whole) {
        store(to, rows[i]);
      } else {
        store_part(to, rows[i], count);
      }
    }
    column += kLanes;
  }
}

/// The rows of all runs, one after the other, become panels [rows / kPanel][width][kPanel], the
/// last one padded with zeros.
void pack_keys(const RowRun* runs, int run_count, std::int64_t width, float* packed) {
  int filled = 0;
  for (int r = 0; r < run_count; ++r) {
    const RowRun& run = runs[r];
    for (std::int64_t row = 0; row < run.count;) {
      int count = run.count - row < kLanes ? static_cast<int>(run.count - row) : kLanes;
      if (count > kPanel - filled) count = kPanel - filled;
      const bool whole = filled + kLanes <= kPanel;
      if (run.older && run.alpha != 0.0f) {
        pack_columns<true>(run, row, count, width, whole, packed + filled);
      } else {
        pack_columns<false>(run, row, count, width, whole, packed + filled);
      }
      row += count;
      filled += count;
      if (filled == kPanel) {
        packed += kPanel * width;
        filled = 0;
      }
    }
  }
  if (filled == 0) return;
  for (std::int64_t k = 0; k < width; ++k)
    for (int j = filled; j < kPanel; ++j)
      packed[k * kPanel + j] = 0.0f;
}

void pack_weight(const float* weight, std::int64_t depth, std::int64_t columns, float* packed) {
  const RowRun all{weight, nullptr, depth, 0, columns, 0.0f};
  pack_keys(&all, 1, depth, packed);
}

/// A panel of values holds this many vectors; the widths of all panels differ by at most one.
inline int value_panel_vecs(std::int64_t vecs, std::int64_t begin) {
  const std::int64_t panels = (vecs + kPanelVecs - 1) / kPanelVecs;
  const std::int64_t wide = vecs % panels, base = vecs / panels;
  return static_cast<int>(begin < wide * (base + 1) ? base + 1 : base);
}

template <bool kMoved, bool kWide>
float* pack_value_rows(const RowRun& run, std::int64_t first, int vecs, std::int64_t width,
                       float* packed) {
  for (std::int64_t row = 0; row < run.count; ++row) {
    for (int j = 0; j < vecs; ++j, packed += kLanes) {
      const std::int64_t column = (first + j) * kLanes;
      const int limit = width - column < kLanes ? static_cast<int>(width - column) : kLanes;
      store(packed, run_lanes<kMoved, kWide>(run, row, column, limit));
    }
  }
  return packed;
}

void pack_values(const RowRun* runs, int run_count, std::int64_t width, float* packed) {
  const std::int64_t vecs = (width + kLanes - 1) / kLanes;
  for (std::int64_t first = 0; first < vecs;) {
    const int panel = value_panel_vecs(vecs, first);
    for (int r = 0; r < run_count; ++r) {
      const RowRun& run = runs[r];
      const bool moved = run.older && run.alpha != 0.0f;
      const auto pack = width < kLanes
                            ? (moved ? pack_value_rows<true, false> : pack_value_rows<false, false>)
                            : (moved ? pack_value_rows<true, true> : pack_value_rows<false, true>);
      packed = pack(run, first, panel, width, packed);
    }
    first += panel;
  }
}

}  // namespace
