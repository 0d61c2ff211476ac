// Softmax(q·kᵀ)·v over blocks of keys with a running maximum, one head at a time.
#pragma once

#include "kernels/simd/gemm.inl.h"

namespace {

using troupe::kernels::simd::AttentionTask;

constexpr int kQueryBlock = TROUPE_QUERY_TILES * kTileRows;
constexpr int kKeyBlock = TROUPE_KEY_PANELS * kPanel;

inline std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

std::int64_t packed_keys_size(std::int64_t count, std::int64_t width) {
  return round_up(count, kPanel) * width;
}

std::int64_t packed_values_size(std::int64_t count, std::int64_t width) {
  return count * round_up(width, kLanes);
}

std::int64_t attention_scratch(std::int64_t width) {
  const std::int64_t padded = round_up(width, kLanes);
  return kQueryBlock * (width + padded + kKeyBlock + 2) + 64;
}

/// A panel of values holds this many vectors; the widths of all panels differ by at most one.
inline int value_panel_vecs(std::int64_t vecs, std::int64_t begin) {
  const std::int64_t panels = (vecs + kPanelVecs - 1) / kPanelVecs;
  const std::int64_t wide = vecs % panels, base = vecs / panels;
  return static_cast<int>(begin < wide * (base + 1) ? base + 1 : base);
}

void pack_values(const float* v, std::int64_t stride, std::int64_t count, std::int64_t width,
                 float* packed) {
  const std::int64_t vecs = (width + kLanes - 1) / kLanes;
  for (std::int64_t first = 0; first < vecs;) {
    const int panel = value_panel_vecs(vecs, first);
    for (std::int64_t key = 0; key < count; ++key) {
      const float* row = v + key * stride;
      for (int j = 0; j < panel; ++j, packed += kLanes) {
        const std::int64_t column = (first + j) * kLanes;
        if (column + kLanes <= width) {
          store(packed, load(row + column));
        } else {
          store(packed, load_part(row + column, static_cast<int>(width - column)));
        }
      }
    }
    first += panel;
  }
}

struct AttentionBlock {
  float* q;        // [kQueryBlock, width], scaled so that exp2 can be used
  float* scores;   // [kQueryBlock, kKeyBlock]
  float* sums;     // [kQueryBlock, padded width]
  float* largest;  // [kQueryBlock]
  float* total;    // [kQueryBlock]
};

void score_keys(const AttentionTask& task, const AttentionBlock& block, int rows, std::int64_t key,
                int keys) {
  for (int column = 0; column < keys; column += kPanel) {
    const int width = keys - column < kPanel ? keys - column : kPanel;
    const float* panel = task.keys + (key + column) * task.width;
    for (int i = 0; i < rows; i += kTileRows) {
      multiply<false>(rows - i < kTileRows ? rows - i : kTileRows, (width + kLanes - 1) / kLanes,
                      task.width, block.q + i * task.width, task.width, panel, kPanel,
                      block.scores + i * kKeyBlock + column, kKeyBlock);
    }
  }
}

/// Turns scores into weights relative to the running maximum and rescales what was summed before.
void weigh_keys(const AttentionTask& task, const AttentionBlock& block, int rows, std::int64_t key,
                int keys, std::int64_t padded) {
  constexpr float kLog2E = 1.4426950408889634f;
  const int whole = keys / kLanes * kLanes;
  for (int i = 0; i < rows; ++i) {
    float* scores = block.scores + i * kKeyBlock;
    if (task.bias) {
      for (int j = 0; j < keys; ++j)
        scores[j] += task.bias[key + j] * kLog2E;
    }
    for (int j = keys; j < whole + kLanes && j < kKeyBlock; ++j)
      scores[j] = -__builtin_inff();
    Vec top = load(scores);
    for (int j = kLanes; j < keys; j += kLanes)
      top = larger(top, load(scores + j));
    const float before = block.largest[i];
    const float row_top = largest(top);
    const float now = row_top > before ? row_top : before;
    const float pivot = now == -__builtin_inff() ? 0.0f : now;
    Vec total{};
    for (int j = 0; j < keys; j += kLanes) {
      const Vec weight = exp2(load(scores + j) - pivot);
      store(scores + j, weight);
      total += weight;
    }
    if (now != before) {
      const float shrink = exp2(splat(before - pivot))[0];
      block.total[i] *= shrink;
      float* sums = block.sums + i * padded;
      for (std::int64_t j = 0; j < padded; j += kLanes)
        store(sums + j, load(sums + j) * shrink);
      block.largest[i] = now;
    }
    block.total[i] += sum(total);
  }
}

void add_values(const AttentionTask& task, const AttentionBlock& block, int rows, std::int64_t key,
                int keys, std::int64_t padded) {
  const std::int64_t vecs = padded / kLanes;
  const float* values = task.values;
  for (std::int64_t first = 0; first < vecs;) {
    const int panel = value_panel_vecs(vecs, first);
    for (int i = 0; i < rows; i += kTileRows) {
      multiply<true>(rows - i < kTileRows ? rows - i : kTileRows, panel, keys,
                     block.scores + i * kKeyBlock, kKeyBlock, values + key * panel * kLanes,
                     panel * kLanes, block.sums + i * padded + first * kLanes, padded);
    }
    values += task.key_count * panel * kLanes;
    first += panel;
  }
}

void attention(const AttentionTask& task) {
  const std::int64_t padded = round_up(task.width, kLanes);
  const float factor = task.scale * 1.4426950408889634f;
  AttentionBlock block;
  block.scores = task.scratch;
  block.sums = block.scores + kQueryBlock * kKeyBlock;
  block.q = block.sums + kQueryBlock * padded;
  block.largest = block.q + kQueryBlock * task.width;
  block.total = block.largest + kQueryBlock;
  for (std::int64_t query = 0; query < task.queries; query += kQueryBlock) {
    const int rows =
        static_cast<int>(task.queries - query < kQueryBlock ? task.queries - query : kQueryBlock);
    for (int i = 0; i < rows; ++i) {
      const float* q = task.q + (query + i) * task.q_stride;
      for (std::int64_t j = 0; j < task.width; ++j)
        block.q[i * task.width + j] = q[j] * factor;
      for (std::int64_t j = 0; j < padded; ++j)
        block.sums[i * padded + j] = 0.0f;
      block.largest[i] = -__builtin_inff();
      block.total[i] = 0.0f;
    }
    for (std::int64_t key = 0; key < task.key_count; key += kKeyBlock) {
      const int keys =
          static_cast<int>(task.key_count - key < kKeyBlock ? task.key_count - key : kKeyBlock);
      score_keys(task, block, rows, key, keys);
      weigh_keys(task, block, rows, key, keys, padded);
      add_values(task, block, rows, key, keys, padded);
    }
    for (int i = 0; i < rows; ++i) {
      float* out = task.out + (query + i) * task.out_stride;
      const float share = 1.0f / block.total[i];
      for (std::int64_t j = 0; j < task.width; ++j)
        out[j] = block.sums[i * padded + j] * share;
    }
  }
}

}  // namespace
