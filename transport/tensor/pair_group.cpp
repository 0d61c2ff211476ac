#include "transport/tensor/pair_group.h"

namespace troupe::tensor {
namespace {

/// Bytes that one pair moves each way in one pass before the next pair has its turn.
constexpr std::size_t kPassBytes = 1u << 20;

}  // namespace

PairGroup::PairGroup(std::shared_ptr<Engine> engine, const std::string& backend,
                     const std::string& name, int rank, int size,
                     std::vector<Connection> connections)
    : engine_(std::move(engine)), member_(std::make_shared<Membership>()), size_(size) {
  member_->backend = backend;
  member_->group = name;
  member_->rank = rank;
  member_->engine = engine_;
  links_.resize(size);
  for (Connection& connection : connections) {
    Link& link = links_[connection.peer];
    link.pair = std::make_unique<Pair>(std::move(connection.stream), connection.peer, tally_);
    link.control = std::make_shared<ControlLink>(engine_->io(), std::move(connection.control));
  }
  engine_->add(this);
  for (int peer = 0; peer < size_; ++peer)
    if (auto& control = links_[peer].control)
      control->start([this, peer](const Notice& notice) { noticed(peer, notice); });
}

PairGroup::~PairGroup() {
  for (Link& link : links_)
    if (link.control) link.control->send({Notice::Kind::goodbye, Failure::peer_left, -1, ""});
  for (Link& link : links_)
    if (link.control) link.control->detach();
  fail(Failure::aborted, rank(), "the group was destroyed");
  engine_->remove(this);
}

void PairGroup::abort(const std::string& why) {
  fail(Failure::aborted, rank(), why);
}

Counters PairGroup::counters() const {
  return {tally_.bytes_sent, tally_.bytes_received, tally_.messages_sent, tally_.messages_received,
          static_cast<double>(member_->waiting_nanoseconds) * 1e-9};
}

bool PairGroup::advance() {
  if (collapse_) return false;
  bool more = false;
  for (Link& link : links_) {
    if (!link.pair) continue;
    try {
      more |= link.pair->advance(kPassBytes,
                                 [this](const Transfer& transfer) { transfer_ended(transfer); });
    } catch (const TransferError& error) {
      fail_driving(error.failure(), link.pair->peer(), error.what());
      return false;
    }
  }
  return std::exchange(ready_, false) || more;
}

void PairGroup::transfer_ended(const Transfer& transfer) {
  Operation& op = *transfer.operation;
  if (op.done()) return;
  if (transfer.opens_gate && --op.gate_left == 0) {
    op.open_gate();
    op.gate_open = true;
    ready_ = true;
  }
  if (--op.transfers_left == 0) {
    op.succeed();
    engine_->note_settled();
  }
}

void PairGroup::noticed(int peer, const Notice& notice) {
  const std::string rank_name = "rank " + std::to_string(peer);
  switch (notice.kind) {
    case Notice::Kind::goodbye:
      engine_->exclusively([&] { links_[peer].pair->peer_closed(); });
      engine_->kick();
      return;
    case Notice::Kind::failure:
      fail(notice.failure, notice.culprit, notice.cause + " (reported by " + rank_name + ")");
      return;
    case Notice::Kind::lost:
      engine_->peer_died();
      break;
  }
  engine_->exclusively([&] {
    if (!links_[peer].pair->closed())
      fail_driving(Failure::peer_lost, peer, rank_name + " is gone");
  });
}

void PairGroup::fail(Failure failure, int peer, const std::string& cause) {
  engine_->exclusively([&] { fail_driving(failure, peer, cause); });
}

void PairGroup::fail_driving(Failure failure, int peer, const std::string& cause) {
  std::lock_guard lock(issue_mutex_);
  if (collapse_) return;
  collapse_ = Collapse{failure, peer, cause};
  for (Link& link : links_) {
    if (!link.pair) continue;
    link.control->send({Notice::Kind::failure, failure, peer, cause});
    link.pair->clear([&](const Transfer& transfer) {
      transfer.operation->fail(failure, peer, cause);
      engine_->note_settled();
    });
  }
}

std::shared_ptr<Operation> PairGroup::operation(const char* kind, const char* relation, int peer,
                                                std::size_t bytes) const {
  return std::make_shared<Operation>(member_, kind, relation, peer, bytes);
}

at::Tensor PairGroup::readable(const char* what, const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided)
    refuse(std::string(what) + ": not a dense CPU tensor");
  return tensor.contiguous();
}

void PairGroup::check_writable(const char* what, const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.device().is_cpu() || tensor.layout() != at::kStrided)
    refuse(std::string(what) + ": not a dense CPU tensor");
  if (!tensor.is_contiguous())
    refuse(std::string(what) + ": a tensor that is received into must be contiguous");
}

void PairGroup::check_peer(const char* what, int peer) const {
  if (peer < 0 || peer >= size_ || peer == rank())
    refuse(std::string(what) + ": rank " + std::to_string(peer) + " is not a peer, the group has " +
           std::to_string(size_));
}

void PairGroup::check_count(const char* what, std::size_t count) const {
  if (count != static_cast<std::size_t>(size_))
    refuse(std::string(what) + ": " + std::to_string(count) + " tensors for " +
           std::to_string(size_) + " ranks");
}

void PairGroup::refuse(const std::string& text) const {
  throw std::invalid_argument(member_->prefix() + text);
}

}  // namespace troupe::tensor
