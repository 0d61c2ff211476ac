#include "transport/control/connection_impl.h"

#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "base/format.h"
#include "transport/control/endpoint.h"
#include "transport/control/link.h"
#include "transport/control/zap.h"

namespace troupe::control {
namespace {

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
    case Link::Arrival::duplicate:
      ++counters_.duplicates;
      return;
    case Link::Arrival::gap:
      counters_.gaps += missing;
      if (on_gap) on_gap(missing);
      if (closed_ || state != State::up) return;
      break;
    case Link::Arrival::next:
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

}  // namespace troupe::control
