#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Adds up what shards of one matrix product computed: the only thing that splitting weights over
/// processes changes.
class TensorParallelPort {
 public:
  virtual ~TensorParallelPort() = default;

  /// Sums `partial`, contiguous, over all shards, in place. Every shard gets the same bits.
  virtual void sum(at::Tensor& partial) = 0;
  /// Puts the largest of all shards' values, contiguous, in place of each.
  virtual void largest(at::Tensor& values) = 0;
};

/// The weights are whole.
class WholeWeights final : public TensorParallelPort {
 public:
  void sum(at::Tensor&) override {}
  void largest(at::Tensor&) override {}
};

}  // namespace troupe::models
