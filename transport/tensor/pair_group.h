#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/tensor/control_link.h"
#include "transport/tensor/engine.h"
#include "transport/tensor/pair.h"

namespace troupe::tensor {

/// One connected peer, as the rendezvous hands it over.
struct Connection {
  int peer;
  std::unique_ptr<Stream> stream;
  UniqueFd control;
};

/// A group over directed pairs: collectives written once for every backend that moves bytes
/// between two processes.
class PairGroup : public Group, private Pollable {
 public:
  PairGroup(std::shared_ptr<Engine> engine, const std::string& backend, const std::string& name,
            int rank, int size, std::vector<Connection> connections);
  ~PairGroup() override;

  int rank() const override { return member_->rank; }
  int size() const override { return size_; }
  const std::string& name() const override { return member_->group; }

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
  struct Link {
    std::unique_ptr<Pair> pair;
    std::shared_ptr<ControlLink> control;
  };
  struct Collapse {
    Failure failure;
    int peer;
    std::string cause;
  };
  /// Transfers of one operation, gathered before they are queued all at once.
  class Issue;

  bool advance() override;
  void transfer_ended(const Transfer& transfer);
  void noticed(int peer, const Notice& notice);
  void fail(Failure failure, int peer, const std::string& cause);
  void fail_driving(Failure failure, int peer, const std::string& cause);

  std::shared_ptr<Operation> operation(const char* kind, const char* relation, int peer,
                                       std::size_t bytes) const;
  at::Tensor readable(const char* what, const at::Tensor& tensor) const;
  void check_writable(const char* what, const at::Tensor& tensor) const;
  void check_peer(const char* what, int peer) const;
  void check_count(const char* what, std::size_t count) const;
  [[noreturn]] void refuse(const std::string& text) const;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Membership> member_;
  int size_;
  Pair::Tally tally_;
  std::vector<Link> links_;  ///< one per rank; the own rank's is empty
  std::mutex issue_mutex_;
  bool ready_ = false;
  std::optional<Collapse> collapse_;  ///< guarded by both the issue mutex and the drive lock
};

}  // namespace troupe::tensor
