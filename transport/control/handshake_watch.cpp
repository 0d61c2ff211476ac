#include "transport/control/handshake_watch.h"

#include <cstring>

#include "base/format.h"
#include "transport/control/key_folder.h"
#include "transport/control/types.h"

namespace troupe::control {
namespace {

constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                        ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH |
                        ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
/// A server that cannot read what was sealed for another key hangs up without a word; one without
/// keys may do so before its greeting has been read.
constexpr int kHangUps = 3;

struct Event {
  std::uint16_t kind = 0;
  std::uint32_t value = 0;
};

std::optional<Event> next_event(zmq::socket_t& socket) {
  zmq::message_t frame;
  if (!socket.recv(frame, zmq::recv_flags::dontwait)) return std::nullopt;
  Event event;
  if (frame.size() >= 6) {
    std::memcpy(&event.kind, frame.data<char>(), 2);
    std::memcpy(&event.value, frame.data<char>() + 2, 4);
  }
  while (frame.more() && socket.recv(frame, zmq::recv_flags::dontwait)) {
  }
  return event;
}

}  // namespace

HandshakeWatch::HandshakeWatch(zmq::context_t& context, zmq::socket_t& socket, std::string endpoint,
                               const std::optional<ClientKeys>& keys)
    : socket_(socket),
      endpoint_(std::move(endpoint)),
      has_keys_(keys),
      own_users_(keys && keys->own_users),
      origin_(keys ? keys->origin : ""),
      events_(context, zmq::socket_type::pair) {
  const std::string name = fmt::format("inproc://troupe.handshake.{}", random_incarnation());
  events_.set(zmq::sockopt::linger, 0);
  if (zmq_socket_monitor(socket.handle(), name.c_str(), kEvents) != 0) throw zmq::error_t();
  events_.connect(name);
}

HandshakeWatch::~HandshakeWatch() {
  // Before `events_` closes: ZeroMQ's I/O thread would wait for ever for somebody to read.
  if (socket_.handle() != nullptr) zmq_socket_monitor(socket_.handle(), nullptr, 0);
}

std::string HandshakeWatch::not_own() const {
  return endpoint_ + " does not know this user's own keys, in " + origin_ + ". " + kWithoutOwnKeys;
}

std::optional<std::string> HandshakeWatch::obstacle() {
  while (const auto event = next_event(events_)) {
    switch (event->kind) {
      case ZMQ_EVENT_CONNECTED:
        reached_ = true;
        break;
      case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
        hung_up_ = 0;
        break;
      case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
        if (own_users_) return not_own();
        return endpoint_ + " does not allow the key in " + origin_ +
               "/client.key: have it added there with `troupe keys add`";
      case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        if (event->value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH) {
          if (own_users_) return not_own();
          return has_keys_
                     ? endpoint_ +
                           " works without keys: leave out --keys (and TROUPE_KEYS), or start "
                           "it with --keys"
                     : endpoint_ +
                           " asks for keys: give --keys DIR or set TROUPE_KEYS (`troupe keys "
                           "add` makes them where the cluster runs); where it is this user's own, "
                           "leave out --keys none, or unset TROUPE_KEYS";
        }
        [[fallthrough]];
      case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        if (has_keys_ && ++hung_up_ >= kHangUps) {
          if (own_users_) return not_own();
          return endpoint_ + " has another key than " + origin_ +
                 "/server.pub, or works without keys: fetch the right one from where the cluster "
                 "runs, or leave out --keys";
        }
        break;
      default:
        break;
    }
  }
  return std::nullopt;
}

}  // namespace troupe::control
