#pragma once
#include <memory>
#include <utility>

#include "actors/parallel/wait_for_work.h"
#include "models/dit/ports.h"

namespace troupe::actors {

/// Tensor parallelism over a group: one all-reduce for each sharded product, two where it is
/// quantized.
class GroupSum final : public models::TensorParallelPort {
 public:
  GroupSum(std::shared_ptr<tensor::Group> group, WaitForWork wait)
      : group_(std::move(group)), wait_(std::move(wait)) {}

  void sum(at::Tensor& partial) override {
    if (partial.numel() > 0) wait_(group_->all_reduce(partial, tensor::ReduceOp::sum));
  }
  void largest(at::Tensor& values) override {
    if (values.numel() > 0) wait_(group_->all_reduce(values, tensor::ReduceOp::max));
  }

 private:
  std::shared_ptr<tensor::Group> group_;
  WaitForWork wait_;
};

}  // namespace troupe::actors
