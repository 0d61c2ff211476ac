#include <ATen/ops/empty.h>

#include <cstring>

#include "transport/tensor/pair_group.h"
#include "transport/tensor/reduce.h"

// Sending, receiving and every collective of a PairGroup, as transfers between pairs.
namespace troupe::tensor {
namespace {

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

void copy_own(const at::Tensor& out, const at::Tensor& in) {
  if (in.nbytes() > 0 && out.data_ptr() != in.data_ptr())
    std::memmove(out.data_ptr(), in.data_ptr(), in.nbytes());
}

}  // namespace

class PairGroup::Issue {
 public:
  Issue(PairGroup& group, std::shared_ptr<Operation> operation)
      : group_(group), operation_(std::move(operation)) {}

  void send(int peer, std::byte* data, std::size_t bytes, bool gated = false) {
    if (peer != group_.rank()) sends_.push_back({peer, {data, bytes, operation_, gated, false}});
  }
  void receive(int peer, std::byte* data, std::size_t bytes, bool opens_gate = false) {
    if (peer == group_.rank()) return;
    receives_.push_back({peer, {data, bytes, operation_, false, opens_gate}});
    if (opens_gate) ++operation_->gate_left;
  }

  Work start() {
    operation_->transfers_left = sends_.size() + receives_.size();
    {
      std::lock_guard lock(group_.issue_mutex_);
      if (const auto& collapse = group_.collapse_) {
        operation_->fail(collapse->failure, collapse->peer, collapse->cause);
      } else if (operation_->transfers_left == 0) {
        if (operation_->open_gate) operation_->open_gate();
        operation_->succeed();
      } else {
        for (auto& [peer, transfer] : receives_)
          group_.links_[peer].pair->post_receive(std::move(transfer));
        for (auto& [peer, transfer] : sends_)
          group_.links_[peer].pair->post_send(std::move(transfer));
      }
    }
    if (!operation_->done()) group_.engine_->kick();
    return Work(operation_);
  }

 private:
  PairGroup& group_;
  std::shared_ptr<Operation> operation_;
  std::vector<std::pair<int, Transfer>> sends_;
  std::vector<std::pair<int, Transfer>> receives_;
};

Work PairGroup::send(const at::Tensor& in, int destination) {
  check_peer("send", destination);
  const at::Tensor bytes = readable("send", in);
  auto op = operation("send", "to", destination, bytes.nbytes());
  op->keep(bytes);
  Issue issue(*this, std::move(op));
  issue.send(destination, bytes_of(bytes), bytes.nbytes());
  return issue.start();
}

Work PairGroup::receive(const at::Tensor& out, int source) {
  check_peer("receive", source);
  check_writable("receive", out);
  auto op = operation("receive", "from", source, out.nbytes());
  op->keep(out);
  Issue issue(*this, std::move(op));
  issue.receive(source, bytes_of(out), out.nbytes());
  return issue.start();
}

Work PairGroup::grouped(const std::vector<PeerTensor>& sends,
                        const std::vector<PeerTensor>& receives) {
  std::size_t total = 0;
  for (const auto& [tensor, peer] : receives) {
    check_peer("grouped", peer);
    check_writable("grouped", tensor);
    total += tensor.nbytes();
  }
  for (const auto& [tensor, peer] : sends) {
    check_peer("grouped", peer);
    total += tensor.nbytes();
  }
  auto op = operation("grouped transfer", "", -1, total);
  Issue issue(*this, op);
  for (const auto& [tensor, peer] : receives) {
    op->keep(tensor);
    issue.receive(peer, bytes_of(tensor), tensor.nbytes());
  }
  for (const auto& [tensor, peer] : sends) {
    const at::Tensor bytes = readable("grouped", tensor);
    op->keep(bytes);
    issue.send(peer, bytes_of(bytes), bytes.nbytes());
  }
  return issue.start();
}

Work PairGroup::broadcast(const at::Tensor& inout, int root) {
  if (root < 0 || root >= size_) refuse("broadcast: there is no rank " + std::to_string(root));
  const bool sends = root == rank();
  if (!sends) check_writable("broadcast", inout);
  const at::Tensor bytes = sends ? readable("broadcast", inout) : inout;
  auto op = operation("broadcast", "from", root, bytes.nbytes());
  op->keep(bytes);
  Issue issue(*this, op);
  if (!sends) issue.receive(root, bytes_of(bytes), bytes.nbytes());
  for (int peer = 0; sends && peer < size_; ++peer)
    issue.send(peer, bytes_of(bytes), bytes.nbytes());
  return issue.start();
}

Work PairGroup::all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) {
  check_count("all_gather", outs.size());
  for (const at::Tensor& out : outs)
    check_writable("all_gather", out);
  const at::Tensor bytes = readable("all_gather", in);
  if (outs[rank()].nbytes() != bytes.nbytes())
    refuse("all_gather: the own output has " + std::to_string(outs[rank()].nbytes()) +
           " bytes, the input " + std::to_string(bytes.nbytes()));
  copy_own(outs[rank()], bytes);
  auto op = operation("all-gather", "", -1, bytes.nbytes());
  op->keep(bytes);
  Issue issue(*this, op);
  for (int step = 1; step < size_; ++step) {
    const int from = (rank() + size_ - step) % size_;
    op->keep(outs[from]);
    issue.receive(from, bytes_of(outs[from]), outs[from].nbytes());
    issue.send((rank() + step) % size_, bytes_of(bytes), bytes.nbytes());
  }
  return issue.start();
}

Work PairGroup::all_to_all(const std::vector<at::Tensor>& outs,
                           const std::vector<at::Tensor>& ins) {
  check_count("all_to_all", outs.size());
  check_count("all_to_all", ins.size());
  std::vector<at::Tensor> parts;
  std::size_t total = 0;
  for (const at::Tensor& out : outs)
    check_writable("all_to_all", out);
  for (const at::Tensor& in : ins) {
    parts.push_back(readable("all_to_all", in));
    total += parts.back().nbytes();
  }
  if (outs[rank()].nbytes() != parts[rank()].nbytes())
    refuse("all_to_all: the own output and input differ in size");
  copy_own(outs[rank()], parts[rank()]);
  auto op = operation("all-to-all", "", -1, total);
  Issue issue(*this, op);
  for (int step = 1; step < size_; ++step) {
    const int from = (rank() + size_ - step) % size_;
    const int to = (rank() + step) % size_;
    op->keep(outs[from]);
    op->keep(parts[to]);
    issue.receive(from, bytes_of(outs[from]), outs[from].nbytes());
    issue.send(to, bytes_of(parts[to]), parts[to].nbytes());
  }
  return issue.start();
}

Work PairGroup::all_reduce(const at::Tensor& inout, ReduceOp op_kind) {
  check_writable("all_reduce", inout);
  if (!is_reducible(inout.scalar_type()))
    refuse(std::string("all_reduce: cannot reduce ") + c10::toString(inout.scalar_type()));
  const std::int64_t count = inout.numel();
  const std::size_t width = inout.element_size();
  auto op = operation("all-reduce", "", -1, inout.nbytes());
  op->keep(inout);
  const auto begin = [&](int owner) { return count * owner / size_; };
  const auto run_of = [&](int owner) { return bytes_of(inout) + begin(owner) * width; };
  const auto bytes = [&](int owner) { return (begin(owner + 1) - begin(owner)) * width; };

  // Each rank owns one run of elements, reduces everybody's in the order of ranks, hands it out.
  const std::int64_t own = begin(rank() + 1) - begin(rank());
  const at::Tensor staging = at::empty({size_ - 1, own}, inout.options().requires_grad(false));
  op->keep(staging);
  Issue issue(*this, op);
  std::vector<const void*> parts(size_, run_of(rank()));
  std::size_t row = 0;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank()) continue;
    std::byte* slot = bytes_of(staging) + row++ * bytes(rank());
    parts[peer] = slot;
    issue.receive(peer, slot, bytes(rank()), /*opens_gate=*/true);
    issue.send(peer, run_of(peer), bytes(peer));
  }
  for (int peer = 0; peer < size_; ++peer) {
    issue.receive(peer, run_of(peer), bytes(peer));
    issue.send(peer, run_of(rank()), bytes(rank()), /*gated=*/true);
  }
  op->gate_open = size_ == 1;
  op->open_gate = [parts = std::move(parts), out = run_of(rank()), own, op_kind,
                   type = inout.scalar_type()] {
    if (parts.size() > 1) reduce_in_order(out, parts, own, type, op_kind);
  };
  return issue.start();
}

}  // namespace troupe::tensor
