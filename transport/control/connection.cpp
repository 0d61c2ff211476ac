#include "transport/control/connection.h"

#include <unistd.h>

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <zmq.hpp>

#include "base/format.h"
#include "transport/control/core.h"
#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"
#include "transport/control/zap.h"

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

constexpr Milliseconds kHelloAgain{100};

std::string fresh_routing_id() {
  std::string id = "T";
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t part = random_incarnation();
    id.append(reinterpret_cast<const char*>(&part), sizeof part);
  }
  return id;
}

}  // namespace

/// Sees why a socket that is connecting is not let in, which ZeroMQ itself would try for ever in
/// silence. Asked, not driven: it needs no loop of its own.
class HandshakeWatch {
 public:
  /// `socket` must be about to connect to `endpoint`, with `keys` or without, and outlive this.
  HandshakeWatch(zmq::context_t& context, zmq::socket_t& socket, std::string endpoint,
                 const std::optional<ClientKeys>& keys);
  ~HandshakeWatch();
  HandshakeWatch(const HandshakeWatch&) = delete;
  HandshakeWatch& operator=(const HandshakeWatch&) = delete;

  /// Returns what keeps the two ends apart and what to do about it, in one line; nothing while the
  /// connection may still work. Never blocks.
  std::optional<std::string> obstacle();
  /// Returns whether somebody took the connection, whatever became of it; by what `obstacle` has
  /// seen.
  bool reached() const { return reached_; }

 private:
  std::string not_own() const;

  zmq::socket_t& socket_;
  std::string endpoint_;
  bool has_keys_;
  bool own_users_;
  std::string origin_;
  zmq::socket_t events_;
  int hung_up_ = 0;
  bool reached_ = false;
};

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

  SequenceNumbers link_;
  Outbox outbox_;
  std::optional<SocketFolder> folder_;       // of an ipc endpoint, once it is there
  std::optional<HandshakeWatch> handshake_;  // while greeting
  std::uint64_t server_incarnation_ = 0;
  Clock::time_point heard_{};
  Clock::time_point greeting_until_{};
  Milliseconds timeout_{0};
};

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

Connection::Impl::Impl(boost::asio::io_context& io, ConnectionOptions options_)
    : Core(io, options_.socket, zmq::socket_type::dealer),
      options(std::move(options_)),
      outbox_(socket_options_.max_queued_messages, socket_options_.max_queued_bytes) {
  if (options.incarnation == 0) options.incarnation = random_incarnation();
  if (options.hello.host.empty()) options.hello.host = host_name();
  if (options.hello.pid == 0) options.hello.pid = static_cast<std::uint32_t>(getpid());
  const Endpoint endpoint = parse_endpoint(options.endpoint);
  if (!endpoint.ipc && endpoint.port == 0) {
    throw std::runtime_error("[control] " + options.endpoint + ": no port to connect to");
  }
  socket_.set(zmq::sockopt::routing_id, fresh_routing_id());
  socket_.set(zmq::sockopt::immediate, true);
  socket_.set(zmq::sockopt::reconnect_ivl, 20);
  socket_.set(zmq::sockopt::reconnect_ivl_max, 500);
  if (endpoint.ipv6) socket_.set(zmq::sockopt::ipv6, true);
  if (endpoint.ipc) options.keys.reset();
  if (!options.keys) return;
  if (const auto why = why_no_curve(); !why.empty()) throw std::runtime_error("[control] " + why);
  use_keys(socket_, *options.keys);
}

std::string Connection::Impl::name_of(PeerId) const {
  return "the controller at " + options.endpoint;
}

void Connection::Impl::start() {
  if (state != State::fresh) throw std::logic_error("[control] a connection is started twice");
  state = State::greeting;
  bool reached = false;
  try {
    handshake_.emplace(*context_, socket_, options.endpoint, options.keys);
    reached = reach_out();
  } catch (const zmq::error_t& error) {
    return fail(wire::FailureCode::refused,
                "[control] cannot connect to " + options.endpoint + ": " + error.what());
  } catch (const std::runtime_error& error) {
    return fail(wire::FailureCode::refused, error.what());
  }
  greeting_until_ = Clock::now() + options.welcome_deadline;
  start_reactor();
  if (reached) say_hello();
  start_ticking(std::min(kHelloAgain, options.welcome_deadline), options.welcome_deadline);
}

bool Connection::Impl::reach_out() {
  const Endpoint endpoint = parse_endpoint(options.endpoint);
  if (endpoint.ipc) {
    auto folder = SocketFolder::open(endpoint);
    if (!folder || !folder->check_listener()) return false;
    folder_ = std::move(folder);
  }
  socket_.connect(endpoint.ipc ? folder_->address() : endpoint.text);
  return true;
}

void Connection::Impl::say_hello() {
  // One number for all repetitions: the server takes the first that comes.
  if (outbox_.empty()) push_out(wire::encode_frame({}, options.hello), 1);
}

bool Connection::Impl::receive_one() {
  zmq::message_t frame;
  if (!socket_.recv(frame, zmq::recv_flags::dontwait)) return false;
  ++counters_.messages_received;
  counters_.bytes_received += frame.size();
  if (frame.more()) {
    ++counters_.malformed;
    while (frame.more() && socket_.recv(frame, zmq::recv_flags::dontwait))
      counters_.bytes_received += frame.size();
    if (state == State::up) lose("the controller sent a message of several frames");
    return true;
  }
  handle({frame.data<std::byte>(), frame.size()});
  return true;
}

void Connection::Impl::handle(std::span<const std::byte> frame) {
  try {
    const wire::Header header = wire::decode_header(frame);
    if (state == State::greeting) return handle_greeting(header, wire::payload_of(frame));
    if (state == State::up) return handle_up(header, wire::payload_of(frame));
  } catch (const wire::WireError& error) {
    ++counters_.malformed;
    if (state == State::up) {
      const bool ours = error.code() == wire::WireErrc::not_sendable;
      lose((ours ? "the controller cannot be answered: " : "the controller broke the protocol: ") +
           std::string(error.what()));
    } else if (state == State::greeting) {
      fail(error.code() == wire::WireErrc::version_skew ? wire::FailureCode::version_mismatch
                                                        : wire::FailureCode::refused,
           "[control] " + options.endpoint + ": " + error.what());
    }
  }
}

void Connection::Impl::handle_greeting(const wire::Header& header,
                                       std::span<const std::byte> payload) {
  if (header.kind == wire::Kind::refuse) {
    return fail(wire::FailureCode::refused, "[control] " + options.endpoint + " refuses: " +
                                                wire::decode<wire::Refuse>(payload).reason);
  }
  if (header.kind != wire::Kind::welcome) return;
  const auto welcome = wire::decode<wire::Welcome>(payload);
  if (welcome.heartbeat_interval_ms == 0 || welcome.heartbeat_timeout_ms == 0) {
    throw wire::WireError(wire::WireErrc::bad_value, "[decode] welcome without heartbeat times");
  }
  id = welcome.peer;
  secret = welcome.secret;
  server_incarnation_ = header.incarnation;
  link_.take_outgoing();  // the hello
  link_.begin_incoming(header.sequence);
  heard_ = Clock::now();
  timeout_ = Milliseconds(welcome.heartbeat_timeout_ms);
  state = State::up;
  handshake_.reset();
  start_ticking(Milliseconds(welcome.heartbeat_interval_ms), timeout_);
  on_failed = nullptr;
  if (const auto handler = std::move(on_welcome)) handler(welcome);
}

void Connection::Impl::handle_up(const wire::Header& header, std::span<const std::byte> payload) {
  if (header.incarnation != server_incarnation_) {
    ++counters_.fenced;
    return lose("another controller has taken the place of the one at " + options.endpoint,
                wire::LinkEnd::replaced);
  }
  heard_ = Clock::now();
  if (header.kind == wire::Kind::goodbye) {
    const auto goodbye = wire::decode<wire::Goodbye>(payload);
    return lose("the controller at " + options.endpoint + " ended the link: " + goodbye.reason,
                goodbye.end);
  }
  std::uint64_t missing = 0;
  switch (link_.arrive(header.sequence, missing)) {
    case SequenceNumbers::Arrival::duplicate:
      ++counters_.duplicates;
      return;
    case SequenceNumbers::Arrival::gap:
      counters_.gaps += missing;
      if (on_gap) on_gap(missing);
      if (closed_ || state != State::up) return;
      break;
    case SequenceNumbers::Arrival::next:
      break;
  }
  switch (header.kind) {
    case wire::Kind::heartbeat:
    case wire::Kind::welcome:
      return;
    case wire::Kind::ping:
      if (header.is_request()) {
        wire::Header answer_head;
        answer_head.flags = wire::kFlagReply;
        answer_head.correlation = header.correlation;
        send_frame(kServer, wire::encode_frame(answer_head,
                                               wire::Pong{wire::decode<wire::Ping>(payload).data}));
        return;
      }
      break;
    default:
      break;
  }
  if (header.is_reply()) return answer(kServer, header, payload);
  if (on_message) on_message(header, payload);
}

bool Connection::Impl::push_out(std::string frame, std::uint64_t sequence) {
  wire::FrameHead(frame).set_sender(id, options.incarnation, sequence);
  zmq::message_t out = to_message(std::move(frame));
  reactor_.touch();
  if (outbox_.empty()) {
    const std::size_t bytes = out.size();
    if (socket_.send(out, zmq::send_flags::dontwait)) {
      ++counters_.messages_sent;
      counters_.bytes_sent += bytes;
      return true;
    }
  }
  return outbox_.push(std::move(out));
}

bool Connection::Impl::send_frame(PeerId, std::string frame) {
  if (closed_ || state != State::up) return false;
  if (push_out(std::move(frame), link_.take_outgoing())) return true;
  lose("the controller at " + options.endpoint + " does not read: the outgoing queue is full");
  return false;
}

void Connection::Impl::flush() {
  while (!outbox_.empty()) {
    const std::size_t bytes = outbox_.front().size();
    if (!socket_.send(outbox_.front(), zmq::send_flags::dontwait)) return;
    ++counters_.messages_sent;
    counters_.bytes_sent += bytes;
    outbox_.pop(bytes);
  }
}

void Connection::Impl::tick(bool) {
  const auto now = Clock::now();
  if (state == State::greeting) {
    if (const auto why = handshake_->obstacle())
      return fail(wire::FailureCode::refused, "[control] " + *why);
    if (now >= greeting_until_) {
      if (!handshake_->reached())
        return fail(wire::FailureCode::not_found,
                    "[control] no controller at " + options.endpoint + waited());
      return fail(wire::FailureCode::timeout,
                  "[control] somebody listens at " + options.endpoint + " and does not answer" +
                      waited() + ": " +
                      listener_text(options.endpoint,
                                    "a controller that is stopped or overloaded, or another "
                                    "program"));
    }
    try {
      if (parse_endpoint(options.endpoint).ipc && !folder_ && !reach_out()) return;
    } catch (const std::exception& error) {
      return fail(wire::FailureCode::refused, error.what());
    }
    return say_hello();
  }
  const auto silence = silence_since(heard_);
  if (silence > timeout_) {
    const auto ms = std::chrono::duration_cast<Milliseconds>(silence).count();
    const auto who = listener_text(options.endpoint);
    return lose(fmt::format("{} from the controller at {} for {} ms{}", kSilent, options.endpoint,
                            ms, who.empty() ? who : ": " + who),
                wire::LinkEnd::silent);
  }
  if (outbox_.empty())
    send_frame(kServer,
               wire::encode_frame({}, wire::Heartbeat{progress_.load(std::memory_order_relaxed)}));
}

void Connection::Impl::fail(wire::FailureCode code, const std::string& why) {
  state = State::down;
  closed_ = true;
  handshake_.reset();
  stop_socket();
  on_welcome = nullptr;
  defer([this, failure = wire::Failure{code, why}] {
    if (const auto handler = std::move(on_failed)) handler(failure);
  });
}

std::string Connection::Impl::waited() const {
  if (!options.waits_since) return fmt::format(" (waited {} ms)", options.welcome_deadline.count());
  const auto whole = Clock::now() - *options.waits_since;
  return fmt::format(" (waited {} s)", std::chrono::round<std::chrono::seconds>(whole).count());
}

void Connection::Impl::lose(std::string why, wire::LinkEnd end) {
  if (state != State::up) return;
  if (const auto away = stood_still(); end == wire::LinkEnd::silent && away.count() > 0)
    why = fmt::format("this process stood still for {} s (stopped, or its machine slept): {}",
                      std::chrono::round<std::chrono::seconds>(away).count(), why);
  std::string goodbye = wire::encode_frame({}, wire::Goodbye{why, end});
  push_out(std::move(goodbye), link_.take_outgoing());
  state = State::down;
  closed_ = true;
  stop_socket();
  fail_calls(calls_.take_all(), {wire::FailureCode::lost, why});
  defer([this, loss = Loss{end, why}] {
    if (const auto handler = on_lost) handler(loss);
  });
}

void Connection::Impl::close(const std::string& reason, wire::LinkEnd end) {
  if (state == State::up && !closed_) {
    flush();
    push_out(wire::encode_frame({}, wire::Goodbye{reason, end}), link_.take_outgoing());
  }
  state = State::down;
  handshake_.reset();
  fail_calls(calls_.take_all(), {wire::FailureCode::lost, "closed"});
  if (!closed_) {
    closed_ = true;
    stop_socket();
  }
  on_lost = nullptr;
  on_welcome = nullptr;
  on_failed = nullptr;
  run_deferred();
}

Connection::Connection(boost::asio::io_context& io, ConnectionOptions options)
    : impl_(std::make_shared<Impl>(io, std::move(options))) {}
Connection::~Connection() {
  impl_->abandon();
}

void Connection::start(std::function<void(const wire::Welcome&)> on_welcome,
                       std::function<void(const wire::Failure&)> on_failed) {
  impl_->on_welcome = std::move(on_welcome);
  impl_->on_failed = std::move(on_failed);
  impl_->start();
}
void Connection::on_message(
    std::function<void(const wire::Header&, std::span<const std::byte>)> handler) {
  impl_->on_message = std::move(handler);
}
void Connection::on_lost(std::function<void(const Loss&)> handler) {
  impl_->on_lost = std::move(handler);
}
void Connection::on_gap(std::function<void(std::uint64_t missing)> handler) {
  impl_->on_gap = std::move(handler);
}
void Connection::close(const std::string& reason, wire::LinkEnd end) {
  impl_->close(reason, end);
}

bool Connection::connected() const {
  return impl_->state == Impl::State::up;
}
PeerId Connection::id() const {
  return impl_->id;
}
std::uint64_t Connection::incarnation() const {
  return impl_->options.incarnation;
}
const std::string& Connection::secret() const {
  return impl_->secret;
}
const std::string& Connection::endpoint() const {
  return impl_->options.endpoint;
}
const Counters& Connection::counters() const {
  return impl_->counters();
}
void Connection::set_progress(std::uint64_t progress) {
  impl_->set_progress(progress);
}

bool Connection::send_frame(std::string frame) {
  return impl_->send_frame(kServer, std::move(frame));
}
void Connection::request_frame(std::string frame, Milliseconds deadline, ReplyHandler handler) {
  impl_->request_frame(kServer, std::move(frame), deadline, std::move(handler));
}

}  // namespace troupe::control
