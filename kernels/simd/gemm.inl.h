// Register-blocked matrix products on packed panels. See vec.h for how this file is compiled.
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

}  // namespace
