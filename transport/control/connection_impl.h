#pragma once
#include "transport/control/connection.h"
#include "transport/control/core.h"
#include "transport/control/endpoint.h"
#include "transport/control/handshake_watch.h"
#include "transport/control/link.h"

namespace troupe::control {

inline constexpr PeerId kServer = 0;  // as a peer in the table of requests

class Connection::Impl final : public Core {
 public:
  Impl(boost::asio::io_context& io, ConnectionOptions options);

  void start();
  bool send_frame(PeerId server, std::string frame) override;
  void close(const std::string& reason, wire::LinkEnd end);

  enum class State { fresh, greeting, up, down };

  std::function<void(const wire::Welcome&)> on_welcome;
  std::function<void(const wire::Failure&)> on_failed;
  std::function<void(const wire::Header&, std::span<const std::byte>)> on_message;
  std::function<void(const Loss&)> on_lost;
  std::function<void(std::uint64_t)> on_gap;

  ConnectionOptions options;
  State state = State::fresh;
  PeerId id = 0;
  std::string secret;

 private:
  bool receive_one() override;
  void flush() override;
  void tick(bool stalled) override;
  std::string name_of(PeerId peer) const override;

  /// Connects the socket. False while a local socket's folder is not there. Throws
  /// std::runtime_error.
  bool reach_out();
  void say_hello();
  void handle(std::span<const std::byte> frame);
  void handle_greeting(const wire::Header& header, std::span<const std::byte> payload);
  void handle_up(const wire::Header& header, std::span<const std::byte> payload);
  bool push_out(std::string frame, std::uint64_t sequence);
  void fail(wire::FailureCode code, const std::string& why);
  void lose(std::string why, wire::LinkEnd end = wire::LinkEnd::closed);
  /// Returns how long the connection has waited for a welcome, for people.
  std::string waited() const;

  Link link_;
  Outbox outbox_;
  std::optional<SocketFolder> folder_;       // of an ipc endpoint, once it is there
  std::optional<HandshakeWatch> handshake_;  // while greeting
  std::uint64_t server_incarnation_ = 0;
  Clock::time_point heard_{};
  Clock::time_point greeting_until_{};
  Milliseconds timeout_{0};
};

}  // namespace troupe::control
