#include "transport/tensor/pair_group.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <type_traits>

namespace troupe::tensor {
namespace {

Part header_part(auto& header, std::size_t moved) {
  auto* bytes = reinterpret_cast<std::byte*>(&header);
  const std::size_t done = std::min(moved, sizeof header);
  return {bytes + done, sizeof header - done};
}

Part payload_part(const Transfer& transfer, std::size_t header_size, std::size_t moved,
                  std::size_t budget) {
  const std::size_t done = moved > header_size ? moved - header_size : 0;
  return {transfer.data + done, std::min(transfer.bytes - done, budget)};
}

/// Bytes of `moved` that came after the header's.
std::size_t beyond(const Part& header, std::size_t moved) {
  return moved > header.size ? moved - header.size : 0;
}

constexpr std::int64_t kBlock = 1024;

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, at::Half> || std::is_same_v<T, at::BFloat16>;

template <typename Accumulator>
Accumulator combine(Accumulator a, Accumulator b, ReduceOp op) {
  if (op == ReduceOp::sum) return a + b;
  return (b > a || b != b) ? b : a;
}

template <typename T>
void reduce(T* out, const std::vector<const void*>& parts, std::int64_t count, ReduceOp op) {
  using Accumulator = std::conditional_t<kIsHalf<T>, float, T>;
  std::array<Accumulator, kBlock> block;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t size = std::min(kBlock, count - begin);
    const T* first = static_cast<const T*>(parts[0]) + begin;
    for (std::int64_t i = 0; i < size; ++i)
      block[i] = static_cast<Accumulator>(first[i]);
    for (std::size_t p = 1; p < parts.size(); ++p) {
      const T* part = static_cast<const T*>(parts[p]) + begin;
      for (std::int64_t i = 0; i < size; ++i)
        block[i] = combine(block[i], static_cast<Accumulator>(part[i]), op);
    }
    for (std::int64_t i = 0; i < size; ++i)
      out[begin + i] = static_cast<T>(block[i]);
  }
}

/// Bytes that one pair moves each way in one pass before the next pair has its turn.
constexpr std::size_t kPassBytes = 1u << 20;

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

void copy_own(const at::Tensor& out, const at::Tensor& in) {
  if (in.nbytes() > 0 && out.data_ptr() != in.data_ptr())
    std::memmove(out.data_ptr(), in.data_ptr(), in.nbytes());
}

}  // namespace

void Pair::Lane::push(Transfer transfer) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(transfer));
  count_.store(queue_.size(), std::memory_order_release);
}

Transfer* Pair::Lane::head() {
  if (count_.load(std::memory_order_acquire) == 0) return nullptr;
  std::lock_guard lock(mutex_);
  return &queue_.front();
}

void Pair::Lane::pop() {
  moved = 0;
  ++sequence;
  std::lock_guard lock(mutex_);
  queue_.pop_front();
  count_.store(queue_.size(), std::memory_order_release);
}

bool Pair::advance(std::size_t budget, const Ended& ended) {
  const bool more_out = advance_sends(budget, ended);
  const bool more_in = advance_receives(budget, ended);
  return more_out || more_in;
}

bool Pair::advance_sends(std::size_t budget, const Ended& ended) {
  while (Transfer* transfer = outgoing_.head()) {
    if (transfer->gated && !transfer->operation->gate_open) return false;
    if (budget == 0) return true;
    if (outgoing_.moved == 0) outgoing_.header = {transfer->bytes, outgoing_.sequence, kMagic};
    const Part header = header_part(outgoing_.header, outgoing_.moved);
    const Part payload = payload_part(*transfer, sizeof(Header), outgoing_.moved, budget);
    const std::size_t written = stream_->write(header, payload);
    if (written == Stream::kEnded) {
      if (peer_closed_) throw TransferError(Failure::peer_left, peer_, "the peer left the group");
      return false;
    }
    outgoing_.moved += written;
    tally_.bytes_sent.fetch_add(beyond(header, written), std::memory_order_relaxed);
    if (outgoing_.moved == sizeof(Header) + transfer->bytes) {
      tally_.messages_sent.fetch_add(1, std::memory_order_relaxed);
      ended(*transfer);
      outgoing_.pop();
    } else if (written < header.size + payload.size) {
      return false;
    }
    budget -= std::min(budget, written);
  }
  return false;
}

bool Pair::advance_receives(std::size_t budget, const Ended& ended) {
  while (Transfer* transfer = incoming_.head()) {
    if (budget == 0) return true;
    const std::size_t before = incoming_.moved;
    const Part header = header_part(incoming_.header, before);
    const Part payload = payload_part(*transfer, sizeof(Header), before, budget);
    const std::size_t got = stream_->read(header, payload);
    if (got == Stream::kEnded) {
      if (peer_closed_) throw TransferError(Failure::peer_left, peer_, "the peer left the group");
      return false;
    }
    incoming_.moved += got;
    if (before < sizeof(Header) && incoming_.moved >= sizeof(Header)) check_header(*transfer);
    tally_.bytes_received.fetch_add(beyond(header, got), std::memory_order_relaxed);
    if (incoming_.moved == sizeof(Header) + transfer->bytes) {
      tally_.messages_received.fetch_add(1, std::memory_order_relaxed);
      ended(*transfer);
      incoming_.pop();
    } else if (got < header.size + payload.size && !(peer_closed_ && got > 0)) {
      return false;
    }
    budget -= std::min(budget, got);
  }
  return false;
}

void Pair::check_header(const Transfer& transfer) {
  const Header& header = incoming_.header;
  if (header.magic != kMagic || header.sequence != incoming_.sequence)
    throw TransferError(Failure::mismatch, peer_, "the byte stream is out of step");
  if (header.bytes != transfer.bytes)
    throw TransferError(Failure::mismatch, peer_,
                        "the peer sent a message of " + std::to_string(header.bytes) +
                            " bytes where " + std::to_string(transfer.bytes) + " were awaited");
}

void Pair::peer_closed() {
  peer_closed_ = true;
  stream_->peer_closed();
}

void Pair::clear(const Ended& ended) {
  for (Lane* lane : {&outgoing_, &incoming_}) {
    while (Transfer* transfer = lane->head()) {
      ended(*transfer);
      lane->pop();
    }
  }
}

ControlLink::ControlLink(boost::asio::io_context& io, UniqueFd socket)
    : socket_(io, socket.release()) {}

void ControlLink::start(Handler handler) {
  handler_ = std::move(handler);
  listen();
}

void ControlLink::listen() {
  socket_.async_read_some(
      boost::asio::buffer(reinterpret_cast<char*>(&frame_) + filled_, sizeof frame_ - filled_),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t size) {
        self->received(error, size);
      });
}

void ControlLink::received(const boost::system::error_code& error, std::size_t size) {
  if (error == boost::asio::error::operation_aborted) return;
  if (error) {
    deliver({Notice::Kind::lost, Failure::peer_lost, -1, "the peer is gone"});
    return;
  }
  filled_ += size;
  if (filled_ == sizeof frame_) {
    filled_ = 0;
    const std::size_t length = std::min<std::size_t>(frame_.length, kMaxCause);
    deliver({static_cast<Notice::Kind>(frame_.kind), static_cast<Failure>(frame_.failure),
             frame_.culprit, std::string(frame_.cause, length)});
  }
  listen();
}

void ControlLink::deliver(const Notice& notice) {
  std::lock_guard lock(handler_mutex_);
  if (handler_) handler_(notice);
}

void ControlLink::send(const Notice& notice) {
  std::lock_guard lock(send_mutex_);
  if (std::exchange(sent_, true)) return;
  Frame frame{};
  frame.kind = static_cast<std::uint8_t>(notice.kind);
  frame.failure = static_cast<std::uint8_t>(notice.failure);
  frame.culprit = notice.culprit;
  frame.length = static_cast<std::uint16_t>(std::min(notice.cause.size(), kMaxCause));
  std::memcpy(frame.cause, notice.cause.data(), frame.length);
  // The socket's buffer is empty: nothing was sent since the rendezvous.
  [[maybe_unused]] const auto written =
      ::send(socket_.native_handle(), &frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ControlLink::detach() {
  {
    std::lock_guard lock(handler_mutex_);
    handler_ = nullptr;
  }
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    boost::system::error_code ignored;
    self->socket_.close(ignored);
  });
}

bool is_reducible(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16 || type == at::kFloat || type == at::kDouble ||
         (at::isIntegralType(type, /*includeBool=*/false) && at::elementSize(type) <= 8 &&
          type != at::kUInt16 && type != at::kUInt32 && type != at::kUInt64);
}

void reduce_in_order(void* out, const std::vector<const void*>& parts, std::int64_t count,
                     at::ScalarType type, ReduceOp op) {
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, type, "all_reduce",
                             [&] { reduce(static_cast<scalar_t*>(out), parts, count, op); });
}

PairGroup::PairGroup(std::shared_ptr<Engine> engine, const std::string& backend,
                     const std::string& name, int rank, int size,
                     std::vector<PeerConnection> connections)
    : engine_(std::move(engine)), member_(std::make_shared<Membership>()), size_(size) {
  member_->backend = backend;
  member_->group = name;
  member_->rank = rank;
  member_->engine = engine_;
  links_.resize(size);
  for (PeerConnection& connection : connections) {
    Peer& link = links_[connection.peer];
    link.pair = std::make_unique<Pair>(std::move(connection.stream), connection.peer, tally_);
    link.control = std::make_shared<ControlLink>(engine_->io(), std::move(connection.control));
  }
  engine_->add(this);
  for (int peer = 0; peer < size_; ++peer)
    if (auto& control = links_[peer].control)
      control->start([this, peer](const Notice& notice) { noticed(peer, notice); });
}

PairGroup::~PairGroup() {
  for (Peer& link : links_)
    if (link.control) link.control->send({Notice::Kind::goodbye, Failure::peer_left, -1, ""});
  for (Peer& link : links_)
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
  for (Peer& link : links_) {
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
  for (Peer& link : links_) {
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
