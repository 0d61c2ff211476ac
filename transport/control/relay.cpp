#include "transport/control/relay.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "transport/control/accept_limiter.h"
#include "transport/control/core.h"
#include "transport/control/endpoint.h"
#include "transport/control/mux.h"

namespace troupe::control {
namespace {

constexpr Milliseconds kRelayTick{250};
constexpr std::size_t kMostLinks = 4096;

}  // namespace

class Relay::Impl final : public Core {
 public:
  Impl(boost::asio::io_context& io, const RelayOptions& options, MuxSender::Send send);
  void open() {
    start_reactor();
    start_ticking(kRelayTick, 4 * kRelayTick);
  }
  void take(wire::MuxFrames carried);

  std::string bound;

  struct Slot {
    std::string routing;
    Outbox outbox;
    AcceptedLink at;  // its connection, as of its last message
  };
  std::unordered_map<std::uint32_t, Slot> slots;

 private:
  bool receive_one() override;
  void flush() override;
  void tick(bool) override { AcceptLimiter::of_process().expire(); }
  std::string name_of(PeerId) const override { return "an actor"; }
  bool send_frame(PeerId, std::string) override { return false; }

  /// 0 where it has none and gets none.
  std::uint32_t slot_of(const std::string& routing, wire::Kind kind);
  void send_to(std::uint32_t number, const std::string& frame);
  /// Returns 1 if the frame was sent, 0 if the pipe is full, -1 if there is nobody.
  int transmit(const Slot& slot, zmq::message_t& frame);
  /// Tells the server that this link's connection is gone, and forgets the link.
  void end(std::uint32_t number);
  void forget(std::uint32_t number);
  /// Ends links whose process reads least while all links together are owed too much.
  void bound_queues();

  const std::size_t max_queued_bytes_of_all_;
  WatchedEndpoint endpoint_;
  MuxSender sender_;
  MuxReader arriving_;
  std::unordered_map<std::string, std::uint32_t> by_routing_;
  std::uint32_t last_slot_ = 0;
  std::size_t queued_ = 0;  // bytes in all outboxes
};

Relay::Impl::Impl(boost::asio::io_context& io, const RelayOptions& options, MuxSender::Send send)
    : Core(io, options.socket, zmq::socket_type::router),
      max_queued_bytes_of_all_(options.max_queued_bytes_of_all),
      sender_(io, options.pause, std::move(send)) {
  socket_.set(zmq::sockopt::router_mandatory, true);
  socket_.set(zmq::sockopt::router_handover, true);
  bound = bind_endpoint(socket_, options.endpoint, /*open_to_others=*/false);
  endpoint_ = WatchedEndpoint(bound);
}

bool Relay::Impl::receive_one() {
  zmq::message_t routing;
  zmq::message_t frame;
  if (!socket_.recv(routing, zmq::recv_flags::dontwait)) return false;
  if (!routing.more() || !socket_.recv(frame, zmq::recv_flags::dontwait)) return true;
  ++counters_.messages_received;
  counters_.bytes_received += frame.size();
  if (frame.more() || frame.size() < wire::kHeaderSize) {
    ++counters_.malformed;
    while (frame.more() && socket_.recv(frame, zmq::recv_flags::dontwait)) {
    }
    return true;
  }
  const auto text = frame.to_string_view();
  const auto kind = wire::kind_of(text);
  const auto number = slot_of(routing.to_string(), kind);
  if (number == 0) return true;
  auto& slot = slots.at(number);
  // ZeroMQ may have connected anew beneath the link; the same number may be a new connection's.
  const int over = zmq_msg_get(frame.handle(), ZMQ_SRCFD);
  if (over != slot.at.descriptor || kind == wire::Kind::heartbeat) {
    if (const auto link = AcceptLimiter::of_process().greeted(over)) slot.at = *link;
  }
  sender_.add(number, text);
  if (kind == wire::Kind::goodbye) forget(number);
  return true;
}

std::uint32_t Relay::Impl::slot_of(const std::string& routing, wire::Kind kind) {
  if (const auto known = by_routing_.find(routing); known != by_routing_.end())
    return known->second;
  if (kind != wire::Kind::hello || slots.size() >= kMostLinks) {
    ++counters_.strangers;
    return 0;
  }
  by_routing_.emplace(routing, ++last_slot_);
  slots.emplace(last_slot_,
                Slot{routing,
                     Outbox(socket_options_.max_queued_messages, socket_options_.max_queued_bytes),
                     {}});
  return last_slot_;
}

void Relay::Impl::take(wire::MuxFrames carried) {
  for (auto& entry : carried.frames) {
    const auto number = entry.slot;
    const auto frame = arriving_.take(std::move(entry));
    if (frame && frame->size() >= wire::kHeaderSize) send_to(number, *frame);
    if (closed_) return;
  }
}

void Relay::Impl::send_to(std::uint32_t number, const std::string& frame) {
  const auto found = slots.find(number);
  if (found == slots.end()) return;
  auto& slot = found->second;
  const auto kind = wire::kind_of(frame);
  const bool last = kind == wire::Kind::goodbye || kind == wire::Kind::refuse;
  zmq::message_t out = to_message(frame);
  reactor_.touch();
  const int sent = slot.outbox.empty() ? transmit(slot, out) : 0;
  if (sent < 0) return end(number);
  if (sent == 0) {
    if (!slot.outbox.push(std::move(out))) return end(number);
    queued_ += frame.size();
  }
  if (last) forget(number);
  bound_queues();
}

void Relay::Impl::bound_queues() {
  while (queued_ > max_queued_bytes_of_all_)
    end(std::ranges::max_element(slots, {}, [](const auto& each) {
          return each.second.outbox.bytes();
        })->first);
}

int Relay::Impl::transmit(const Slot& slot, zmq::message_t& frame) {
  try {
    if (!socket_.send(zmq::buffer(slot.routing),
                      zmq::send_flags::sndmore | zmq::send_flags::dontwait))
      return 0;
    const auto bytes = frame.size();
    if (!socket_.send(frame, zmq::send_flags::dontwait)) return -1;
    ++counters_.messages_sent;
    counters_.bytes_sent += bytes;
    return 1;
  } catch (const zmq::error_t&) {
    return -1;  // EHOSTUNREACH: it disconnected
  }
}

void Relay::Impl::flush() {
  if (queued_ == 0) return;
  std::vector<std::uint32_t> gone;
  for (auto& [number, slot] : slots) {
    while (!slot.outbox.empty()) {
      const auto bytes = slot.outbox.front().size();
      const int sent = transmit(slot, slot.outbox.front());
      if (sent < 0) gone.push_back(number);
      if (sent <= 0) break;
      slot.outbox.pop(bytes);
      queued_ -= bytes;
    }
  }
  for (const auto number : gone)
    end(number);
}

void Relay::Impl::end(std::uint32_t number) {
  sender_.add(number, "");
  forget(number);
}

void Relay::Impl::forget(std::uint32_t number) {
  const auto found = slots.find(number);
  if (found == slots.end()) return;
  queued_ -= found->second.outbox.bytes();
  AcceptLimiter::of_process().parted(found->second.at);
  by_routing_.erase(found->second.routing);
  slots.erase(found);
}

Relay::Relay(boost::asio::io_context& io, RelayOptions options,
             std::function<void(const wire::MuxFrames&)> send)
    : impl_(std::make_shared<Impl>(io, options, std::move(send))) {
  impl_->open();
}

Relay::~Relay() {
  impl_->abandon();
}

const std::string& Relay::endpoint() const {
  return impl_->bound;
}
void Relay::take(wire::MuxFrames carried) {
  impl_->take(std::move(carried));
}
std::size_t Relay::links() const {
  return impl_->slots.size();
}

}  // namespace troupe::control
