// Weights, keys and values laid out as panels, and register-blocked products on them. See vec.h for
// how this file is compiled.
#pragma once

#include "kernels/simd/isa.h"
#include "kernels/simd/vec.h"

namespace {

using troupe::kernels::simd::Epilogue;
using troupe::kernels::simd::GemmTask;

constexpr int kPanelVecs = TROUPE_PANEL_VECS;
constexpr int kPanel = kPanelVecs * kLanes;
constexpr int kTileRows = 6;

/// c[M, V·lanes] = (kAccumulate ? c : 0) + a[M, depth] · b[depth, V·lanes]
template <int M, int V, bool kAccumulate>
inline void multiply_tile(std::int64_t depth, const float* a, std::int64_t a_stride, const float* b,
                          std::int64_t b_stride, float* c, std::int64_t c_stride) {
  Vec acc[M][V];
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j)
      acc[i][j] = kAccumulate ? load(c + i * c_stride + j * kLanes) : Vec{};
  for (std::int64_t k = 0; k < depth; ++k, ++a, b += b_stride) {
    Vec row[V];
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j)
      row[j] = load(b + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const float factor = a[i * a_stride];
#pragma GCC unroll 8
      for (int j = 0; j < V; ++j)
        acc[i][j] += factor * row[j];
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < V; ++j)
      store(c + i * c_stride + j * kLanes, acc[i][j]);
}

template <int V, bool kAccumulate>
void multiply_rows(int rows, std::int64_t depth, const float* a, std::int64_t a_stride,
                   const float* b, std::int64_t b_stride, float* c, std::int64_t c_stride) {
  switch (rows) {
    case 1:
      return multiply_tile<1, V, kAccumulate>(depth, a, a_stride, b, b_stride, c, c_stride);
    case 2:
      return multiply_tile<2, V, kAccumulate>(depth, a, a_stride, b, b_stride, c, c_stride);
    case 3:
      return multiply_tile<3, V, kAccumulate>(depth, a, a_stride, b, b_stride, c, c_stride);
    case 4:
      return multiply_tile<4, V, kAccumulate>(depth, a, a_stride, b, b_stride, c, c_stride);
    case 5:
      return multiply_tile<5, V, kAccumulate>(depth, a, a_stride, b, b_stride, c, c_stride);
    default:
      return multiply_tile<6, V, kAccumulate>(depth, a, a_stride, b, b_stride, c, c_stride);
  }
}

/// Multiplies up to kTileRows rows with up to kPanelVecs vectors of columns.
template <bool kAccumulate>
inline void multiply(int rows, int vecs, std::int64_t depth, const float* a, std::int64_t a_stride,
                     const float* b, std::int64_t b_stride, float* c, std::int64_t c_stride) {
  if (vecs == 1)
    return multiply_rows<1, kAccumulate>(rows, depth, a, a_stride, b, b_stride, c, c_stride);
  if constexpr (kPanelVecs >= 3)
    if (vecs == 3)
      return multiply_rows<3, kAccumulate>(rows, depth, a, a_stride, b, b_stride, c, c_stride);
  if constexpr (kPanelVecs >= 4)
    if (vecs == 4)
      return multiply_rows<4, kAccumulate>(rows, depth, a, a_stride, b, b_stride, c, c_stride);
  return multiply_rows<2, kAccumulate>(rows, depth, a, a_stride, b, b_stride, c, c_stride);
}

inline Vec finish(Epilogue epilogue, Vec y, Vec before, Vec gate) {
  switch (epilogue) {
    case Epilogue::kGelu:
      return gelu(y);
    case Epilogue::kAdd:
      return before + y;
    case Epilogue::kGatedAdd:
      return before + gate * y;
    default:
      return y;
  }
}

inline void finish_tile(const GemmTask& task, const float* tile, std::int64_t row, int rows,
                        std::int64_t column, int width) {
  const bool adds = task.epilogue == Epilogue::kAdd || task.epilogue == Epilogue::kGatedAdd;
  const bool gates = task.epilogue == Epilogue::kGatedAdd;
  for (int i = 0; i < rows; ++i) {
    float* out = task.out + (row + i) * task.out_stride + column;
    const float* gate =
        gates ? task.gate + (row + i) / task.gate_rows * task.gate_stride + column : nullptr;
    int j = 0;
    for (; j + kLanes <= width; j += kLanes) {
      Vec y = load(tile + i * kPanel + j);
      if (task.bias) y += load(task.bias + column + j);
      store(out + j,
            finish(task.epilogue, y, adds ? load(out + j) : Vec{}, gates ? load(gate + j) : Vec{}));
    }
    if (const int rest = width - j; rest > 0) {
      Vec y = load(tile + i * kPanel + j);
      if (task.bias) y += load_part(task.bias + column + j, rest);
      const Vec before = adds ? load_part(out + j, rest) : Vec{};
      store_part(out + j,
                 finish(task.epilogue, y, before, gates ? load_part(gate + j, rest) : Vec{}), rest);
    }
  }
}

void gemm(const GemmTask& task) {
  alignas(64) float tile[kTileRows * kPanel];
  for (std::int64_t p = task.panel_begin; p < task.panel_end; ++p) {
    const std::int64_t column = p * kPanel;
    const int width =
        static_cast<int>(task.columns - column < kPanel ? task.columns - column : kPanel);
    const int vecs = (width + kLanes - 1) / kLanes;
    const float* panel = task.packed + p * kPanel * task.depth;
    for (std::int64_t row = task.row_begin; row < task.row_end; row += kTileRows) {
      const int rows =
          static_cast<int>(task.row_end - row < kTileRows ? task.row_end - row : kTileRows);
      multiply<false>(rows, vecs, task.depth, task.x + row * task.x_stride, task.x_stride, panel,
                      kPanel, tile, kPanel);
      finish_tile(task, tile, row, rows, column, width);
    }
  }
}

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
