#include "transport/control/core.h"

#include <time.h>

#include <boost/asio/post.hpp>

#include "base/format.h"

namespace troupe::control {

std::uint64_t Calls::add(Call call) {
  const std::uint64_t correlation = ++last_;
  due_.push_back({call.deadline, correlation});
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
  calls_.emplace(correlation, std::move(call));
  if (due_.size() > 2 * calls_.size() + 1024) tidy();
  return correlation;
}

std::optional<Calls::Call> Calls::take(std::uint64_t correlation, PeerId peer) {
  const auto found = calls_.find(correlation);
  if (found == calls_.end() || found->second.peer != peer) return std::nullopt;
  Call call = std::move(found->second);
  calls_.erase(found);
  return call;
}

std::vector<Calls::Call> Calls::take_expired(Clock::time_point now) {
  std::vector<Call> expired;
  while (!due_.empty() && due_.front().deadline <= now) {
    const std::uint64_t correlation = due_.front().correlation;
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
    if (const auto found = calls_.find(correlation); found != calls_.end()) {
      expired.push_back(std::move(found->second));
      calls_.erase(found);
    }
  }
  return expired;
}

std::vector<Calls::Call> Calls::take_peer(PeerId peer) {
  std::vector<std::uint64_t> mine;
  for (const auto& [correlation, call] : calls_) {
    if (call.peer == peer) mine.push_back(correlation);
  }
  std::sort(mine.begin(), mine.end());
  std::vector<Call> taken;
  for (const std::uint64_t correlation : mine)
    taken.push_back(*take(correlation, peer));
  return taken;
}

std::vector<Calls::Call> Calls::take_all() {
  std::vector<Call> taken;
  for (auto& [correlation, call] : calls_)
    taken.push_back(std::move(call));
  calls_.clear();
  due_.clear();
  return taken;
}

std::optional<Clock::time_point> Calls::next_deadline() const {
  if (due_.empty()) return std::nullopt;
  return due_.front().deadline;
}

void Calls::tidy() {
  std::erase_if(due_, [&](const Due& due) { return !calls_.contains(due.correlation); });
  std::make_heap(due_.begin(), due_.end(), std::greater<>());
}

namespace asio = boost::asio;
namespace {

constexpr int kMessagesPerTurn = 256;
constexpr std::size_t kCopyBelow = 4096;  // bytes; larger frames change hands without a copy

/// Reads the clock that goes on while the machine sleeps, which the steady clock does not.
std::chrono::nanoseconds time_since_boot() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace

Core::Core(asio::io_context& io, const SocketOptions& options, zmq::socket_type type)
    : io_(io),
      socket_options_(options),
      context_(options.context ? options.context : make_context()),
      socket_(*context_, type),
      reactor_(io, socket_, options.patience, [this] { return pump(); }),
      deadline_timer_(io),
      tick_timer_(io) {
  socket_.set(zmq::sockopt::linger, static_cast<int>(options.linger.count()));
  socket_.set(zmq::sockopt::sndhwm, options.high_water_mark);
  socket_.set(zmq::sockopt::rcvhwm, options.high_water_mark);
  socket_.set(zmq::sockopt::maxmsgsize, static_cast<std::int64_t>(wire::kMaxFrame));
  socket_.set(zmq::sockopt::handshake_ivl, 3000);
  // The kernel finds connections that are half open; whether a process lives is shown by its own
  // heartbeats. Not ZeroMQ's: they end the process where a connection breaks while its pipe is full
  // (tests/control/full_pipe_test.cpp).
  socket_.set(zmq::sockopt::tcp_keepalive, 1);
  socket_.set(zmq::sockopt::tcp_keepalive_idle, 2);
  socket_.set(zmq::sockopt::tcp_keepalive_intvl, 2);
  socket_.set(zmq::sockopt::tcp_keepalive_cnt, 3);
  socket_.set(zmq::sockopt::tcp_maxrt, 6000);
}

void Core::abandon() {
  closed_ = true;
  deferred_.clear();
  calls_.take_all();
  stop_socket();
}

void Core::stop_socket() {
  reactor_.stop();
  deadline_timer_.cancel();
  tick_timer_.cancel();
  socket_.close();
}

Pumped Core::pump() {
  for (int i = 0; i < kMessagesPerTurn; ++i) {
    if (closed_) return {};
    if (!receive_one()) {
      if (closed_) return {};
      flush();
      return {.again = !closed_ && (socket_.get(zmq::sockopt::events) & ZMQ_POLLIN),
              .received = i > 0};
    }
  }
  if (!closed_) flush();
  return {.again = true, .received = true};
}

void Core::defer(std::function<void()> work) {
  deferred_.push_back(std::move(work));
  post_deferred();
}

void Core::post_deferred() {
  if (deferred_posted_ || deferred_.empty()) return;
  deferred_posted_ = true;
  asio::post(io_, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    self->deferred_posted_ = false;
    try {
      self->run_deferred();
    } catch (...) {
      self->post_deferred();
      throw;
    }
    self->post_deferred();
  });
}

void Core::run_deferred() {
  for (std::size_t due = deferred_.size(); due > 0 && !deferred_.empty(); --due) {
    const auto work = std::move(deferred_.front());
    deferred_.pop_front();
    work();
  }
}

void Core::request_frame(PeerId peer, std::string frame, Milliseconds deadline,
                         ReplyHandler handler) {
  const auto correlation = calls_.add(
      {peer, wire::kind_of(frame), deadline, Clock::now() + deadline, std::move(handler)});
  arm_deadlines();
  wire::FrameHead(frame).set_correlation(correlation);
  if (send_frame(peer, std::move(frame))) return;
  if (auto call = calls_.take(correlation, peer)) {
    std::vector<Calls::Call> calls;
    calls.push_back(std::move(*call));
    fail_calls(std::move(calls), {wire::FailureCode::lost, "no link to " + name_of(peer)});
  }
}

void Core::fail_handler(const ReplyHandler& handler, const wire::Failure& failure) {
  try {
    handler(Reply(failure));
  } catch (const wire::WireError&) {
    // The handler asked a failure for its payload: nobody to blame but the failure it was told of.
  }
}

void Core::fail_calls(std::vector<Calls::Call> calls, const wire::Failure& failure) {
  if (calls.empty()) return;
  defer([calls = std::move(calls), failure] {
    for (const auto& call : calls)
      fail_handler(call.handler, failure);
  });
}

void Core::answer(PeerId peer, const wire::Header& header, std::span<const std::byte> payload) {
  const auto call = calls_.take(header.correlation, peer);
  if (!call) return;
  if (header.kind == wire::Kind::error) {
    fail_handler(call->handler, wire::decode<wire::Failure>(payload));
  } else {
    call->handler(Reply(header, payload));
  }
}

void Core::arm_deadlines() {
  const auto next = calls_.next_deadline();
  if (!next || *next >= armed_for_) return;
  armed_for_ = *next;
  deadline_timer_.expires_at(*next);
  deadline_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (error) return;
    if (const auto self = weak.lock(); self && !self->closed_) self->on_deadline();
  });
}

void Core::on_deadline() {
  armed_for_ = Clock::time_point::max();
  // An answer that has already arrived beats the deadline.
  reactor_.touch();
  pump();
  if (closed_) return;
  for (auto& call : calls_.take_expired(Clock::now())) {
    const std::string why =
        fmt::format("no answer from {} to {} within {} s", name_of(call.peer),
                    wire::to_string(call.kind), static_cast<double>(call.allowed.count()) / 1e3);
    defer([handler = std::move(call.handler), why] {
      fail_handler(handler, {wire::FailureCode::timeout, why});
    });
  }
  arm_deadlines();
}

void Core::start_ticking(Milliseconds interval, Milliseconds timeout) {
  interval_ = interval;
  timeout_ = timeout;
  arm_tick();
}

Milliseconds Core::late() const {
  return std::chrono::duration_cast<Milliseconds>(time_since_boot() - tick_due_);
}

Milliseconds Core::stood_still() const {
  if (late() > timeout_ / 2) return late();
  return Clock::now() - last_stall_ended_ < 2 * timeout_ ? last_stall_ : Milliseconds(0);
}

void Core::arm_tick() {
  tick_due_ = time_since_boot() + interval_;
  tick_timer_.expires_after(interval_);
  tick_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    if (error) return;
    if (const auto self = weak.lock(); self && !self->closed_) self->on_tick();
  });
}

void Core::on_tick() {
  const bool stalled = late() > timeout_ / 2;
  if (stalled) {
    last_stall_ = late();
    last_stall_ended_ = Clock::now();
  }
  reactor_.touch();
  pump();
  if (closed_) return;
  tick(stalled);
  if (closed_) return;
  arm_tick();
}

zmq::message_t Core::to_message(std::string frame) {
  if (frame.size() < kCopyBelow) return zmq::message_t(frame.data(), frame.size());
  auto* held = new std::string(std::move(frame));
  return zmq::message_t(
      held->data(), held->size(), [](void*, void* hint) { delete static_cast<std::string*>(hint); },
      held);
}

}  // namespace troupe::control
