// Softmax(q·kᵀ)·v over blocks of keys with a running maximum, one head at a time.
#pragma once

#include "kernels/simd/gemm.inl.h"

namespace {

using troupe::kernels::simd::AttentionTask;

constexpr int kQueryBlock = TROUPE_QUERY_TILES * kTileRows;
constexpr int kKeyBlock = TROUPE_KEY_PANELS * kPanel;

std::int64_t attention_scratch(std::int64_t width) {
  const std::int64_t padded = round_up(width, kLanes);
  return kQueryBlock * (width + padded + kKeyBlock + 2) + 64;
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
      const float total = block.total[i];
      const float share = total == 0.0f ? 0.0f : 1.0f / total;
      for (std::int64_t j = 0; j < task.width; ++j)
        out[j] = block.sums[i * padded + j] * share;
      if (task.log_sum_exp) {
        task.log_sum_exp[(query + i) * task.sum_stride] =
            total == 0.0f ? -__builtin_inff()
                          : block.largest[i] * 0.6931471805599453f + __builtin_logf(total);
      }
    }
  }
}

void merge_attention(float* into, float* into_sums, const float* other, const float* other_sums,
                     std::int64_t rows, std::int64_t width) {
  const float nothing = -__builtin_inff();
  for (std::int64_t r = 0; r < rows; ++r, into += width, other += width) {
    const float a = into_sums[r], b = other_sums[r];
    if (b == nothing) {
      if (a == nothing) {
        for (std::int64_t j = 0; j < width; ++j)
          into[j] = 0.0f;
      }
      continue;
    }
    if (a == nothing) {
      for (std::int64_t j = 0; j < width; ++j)
        into[j] = other[j];
      into_sums[r] = b;
      continue;
    }
    const float top = a > b ? a : b;
    const float weight_a = __builtin_expf(a - top), weight_b = __builtin_expf(b - top);
    const float total = weight_a + weight_b;
    const float share_a = weight_a / total, share_b = weight_b / total;
    for (std::int64_t j = 0; j < width; ++j)
      into[j] = into[j] * share_a + other[j] * share_b;
    into_sums[r] = top + __builtin_logf(total);
  }
}

}  // namespace
