#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/tensor/group.h"
#include "transport/tensor/nccl/cuda_handles.h"

namespace troupe::tensor::nccl {

/// One non-blocking NCCL communicator with a stream of its own.
///
/// A small group over TCP with the same members stands beside it: it hands out the unique id, and
/// tells at once of an abort or a death anywhere, which NCCL itself would not.
class NcclGroup : public Group {
 public:
  /// Collective over all members of `watch`.
  NcclGroup(std::unique_ptr<Group> watch, int device, int max_ctas, Deadline deadline);
  ~NcclGroup() override;

  int rank() const override { return watch_->rank(); }
  int size() const override { return watch_->size(); }
  const std::string& name() const override { return watch_->name(); }

  Work send(const at::Tensor& in, int destination) override;
  Work receive(const at::Tensor& out, int source) override;
  Work grouped(const std::vector<PeerTensor>& sends,
               const std::vector<PeerTensor>& receives) override;
  Work broadcast(const at::Tensor& inout, int root) override;
  Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) override;
  Work all_to_all(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& ins) override;
  Work all_reduce(const at::Tensor& inout, ReduceOp op) override;
  void abort(const std::string& why) override;
  Counters counters() const override;

 private:
  class Operation;
  struct Core;

  Work issue(const std::string& what, std::vector<at::Tensor> tensors,
             const std::function<void(ncclComm_t, cudaStream_t)>& calls);
  Work exchange(const std::string& what, const std::vector<PeerTensor>& sends,
                const std::vector<PeerTensor>& receives);
  at::Tensor readable(const std::string& what, const at::Tensor& tensor) const;
  void check_writable(const std::string& what, const at::Tensor& tensor) const;
  void check_peer(const std::string& what, int peer) const;
  void check_sizes(const std::string& what, const std::vector<at::Tensor>& tensors) const;
  [[noreturn]] void refuse(const std::string& text) const;

  std::unique_ptr<Group> watch_;
  std::shared_ptr<Core> core_;
};

}  // namespace troupe::tensor::nccl
