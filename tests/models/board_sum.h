#pragma once
#include <atomic>

#include <ATen/ATen.h>

#include "models/dit/ports.h"
#include "tests/models/memory_halo.h"

namespace troupe::models::testing {

/// Shards that are threads lay their parts on a board.
class BoardSum : public TensorParallelPort {
 public:
  BoardSum(Board& board, int shard, std::atomic<int>& reductions)
      : board_(board), shard_(shard), reductions_(reductions) {}
  void sum(at::Tensor& partial) override {
    ++reductions_;
    const auto all = board_.swap(shard_, partial.clone());
    partial.copy_(all[0]);
    for (size_t other = 1; other < all.size(); ++other)
      partial += all[other];
  }
  void largest(at::Tensor& values) override {
    const auto all = board_.swap(shard_, values.clone());
    for (const at::Tensor& other : all)
      values.copy_(at::maximum(values, other));
  }

 private:
  Board& board_;
  int shard_;
  std::atomic<int>& reductions_;
};

}  // namespace troupe::models::testing
