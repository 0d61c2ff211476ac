#pragma once
#include <string>
#include <utility>
#include <vector>

#include "transport/tensor/group.h"

namespace troupe::actors {

/// A group that exchanges nothing and whose operations have always ended: for a rehearsal. What is
/// received is zero, and yes where it is bytes, which are decisions.
class NullGroup final : public tensor::Group {
 public:
  NullGroup(int rank, int size, std::string name)
      : rank_(rank), size_(size), name_(std::move(name)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::string& name() const override { return name_; }

  tensor::Work send(const at::Tensor& in, int destination) override;
  tensor::Work receive(const at::Tensor& out, int source) override;
  tensor::Work grouped(const std::vector<tensor::PeerTensor>& sends,
                       const std::vector<tensor::PeerTensor>& receives) override;
  tensor::Work broadcast(const at::Tensor& inout, int root) override;
  tensor::Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) override;
  tensor::Work all_to_all(const std::vector<at::Tensor>& outs,
                          const std::vector<at::Tensor>& ins) override;
  tensor::Work all_reduce(const at::Tensor& inout, tensor::ReduceOp op) override;
  void abort(const std::string&) override {}
  tensor::Counters counters() const override { return {}; }

 private:
  int rank_;
  int size_;
  std::string name_;
};

}  // namespace troupe::actors
