#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/tensor/group.h"
#include "transport/tensor/nccl/communicator.h"

namespace troupe::tensor::nccl {

/// The collectives over one communicator, which has a stream of its own.
///
/// A small group over TCP with the same members stands beside it: it hands out the unique id, and
/// tells at once of an abort, a death or a goodbye anywhere, which NCCL itself would not.
///
/// What differs from the other backends: NCCL does not tell when two ends disagree about a size
/// (the deadline does); an all-reduce of floating point among more than two goes as shares that
/// their owners reduce in the order of ranks, so that the bits are those of every other backend;
/// self transfers are copies on the device. Refused inside a CUDA-graph capture.
class NcclGroup : public Group {
 public:
  /// Collective over all members of `watch`.
  NcclGroup(std::unique_ptr<Group> watch, int device, int max_ctas, std::shared_ptr<Turns> turns,
            Deadline deadline);
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
  void begin_abort(const std::string& why) override;
  void abort(const std::string& why) override;
  Counters counters() const override;

 private:
  /// Bytes on the device and the rank that they go to or come from.
  struct Span {
    void* data;
    std::size_t bytes;
    int peer;
  };

  Work exchange(const std::string& what, const std::vector<PeerTensor>& sends,
                const std::vector<PeerTensor>& receives);
  /// Runs one NCCL group of all of these, and copies what goes to the own rank; only inside a body.
  void transfer(const std::string& what, const std::vector<Span>& sends,
                const std::vector<Span>& receives);
  Work reduce_by_shares(const std::string& what, const at::Tensor& inout, ReduceOp op);
  at::Tensor readable(const std::string& what, const at::Tensor& tensor) const;
  void check_writable(const std::string& what, const at::Tensor& tensor) const;
  void check_peer(const std::string& what, int peer) const;
  void check_sizes(const std::string& what, const std::vector<at::Tensor>& tensors) const;
  [[noreturn]] void refuse(const std::string& text) const;

  std::unique_ptr<Group> watch_;
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace troupe::tensor::nccl
