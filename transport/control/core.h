#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>

#include "transport/control/reactor.h"
#include "transport/control/types.h"

namespace troupe::control {

/// Frames that wait for room in a full pipe, bounded in number and bytes.
class Outbox {
 public:
  Outbox(std::size_t max_messages, std::size_t max_bytes)
      : max_messages_(max_messages), max_bytes_(max_bytes) {}

  bool empty() const { return frames_.empty(); }
  std::size_t bytes() const { return bytes_; }
  /// Queues a frame. False if the outbox is full.
  bool push(zmq::message_t&& frame) {
    if (frames_.size() >= max_messages_ || bytes_ + frame.size() > max_bytes_) return false;
    bytes_ += frame.size();
    frames_.push_back(std::move(frame));
    return true;
  }
  zmq::message_t& front() { return frames_.front(); }
  void pop(std::size_t bytes) {
    bytes_ -= bytes;
    frames_.pop_front();
  }
  void clear() {
    frames_.clear();
    bytes_ = 0;
  }

 private:
  std::size_t max_messages_;
  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::deque<zmq::message_t> frames_;
};

/// Requests under way: who was asked what, until when, and who waits for the answer. Reads no clock
/// and calls nobody.
class Calls {
 public:
  struct Call {
    PeerId peer = 0;
    wire::Kind kind{};
    Milliseconds allowed{};
    Clock::time_point deadline;
    ReplyHandler handler;
  };

  /// Returns the correlation id of the call, never 0 and never used before.
  std::uint64_t add(Call call);
  /// Returns the call that an answer from `peer` belongs to; nothing if it is unknown, over, or of
  /// another peer.
  std::optional<Call> take(std::uint64_t correlation, PeerId peer);
  std::vector<Call> take_expired(Clock::time_point now);
  std::vector<Call> take_peer(PeerId peer);
  std::vector<Call> take_all();
  /// Returns a time not later than the earliest deadline of all calls; it may be the deadline of a
  /// call that is over.
  std::optional<Clock::time_point> next_deadline() const;
  std::size_t size() const { return calls_.size(); }

 private:
  struct Due {
    Clock::time_point deadline;
    std::uint64_t correlation;
    bool operator>(const Due& other) const { return deadline > other.deadline; }
  };
  void tidy();

  std::uint64_t last_ = 0;
  std::unordered_map<std::uint64_t, Call> calls_;
  std::vector<Due> due_;  // a heap, earliest first; entries of ended calls stay until they surface
                          // or tidy() runs
};

/// Base of Server and Connection: a socket on a loop, open requests with their deadlines, a regular
/// tick.
class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(boost::asio::io_context& io, const SocketOptions& options, zmq::socket_type type);
  virtual ~Core() = default;

  const Counters& counters() const { return counters_; }
  void set_progress(std::uint64_t progress) {
    progress_.store(progress, std::memory_order_relaxed);
  }
  /// Ends everything without calling anyone.
  void abandon();

  /// Sends an encoded request; `handler` hears the answer, or that there was none within
  /// `deadline`.
  void request_frame(PeerId peer, std::string frame, Milliseconds deadline, ReplyHandler handler);

 protected:
  /// Receives one message, if there is one.
  virtual bool receive_one() = 0;
  /// Sends what waits for room.
  virtual void flush() = 0;
  /// Called every heartbeat interval, after the socket was drained. `stalled`: this loop itself was
  /// away for long.
  virtual void tick(bool stalled) = 0;
  virtual std::string name_of(PeerId peer) const = 0;
  /// Sends a frame to a peer. False if there is no link to the peer.
  virtual bool send_frame(PeerId peer, std::string frame) = 0;

  void start_reactor() { reactor_.start(weak_from_this()); }
  void start_ticking(Milliseconds interval, Milliseconds timeout);
  /// Returns for how long this process itself was away between two ticks, if that was long and not
  /// long ago; else 0. The time that the machine slept counts.
  Milliseconds stood_still() const;
  /// Returns for how long a peer that was heard then has been silent. Who stood still itself heard
  /// nobody, and begins to count anew.
  Clock::duration silence_since(Clock::time_point heard) const {
    return Clock::now() - std::max(heard, last_stall_ended_);
  }
  void stop_socket();

  /// Runs `work` later on this loop, in order; at close at the latest.
  void defer(std::function<void()> work);
  void run_deferred();

  /// Calls the handlers in a later turn.
  void fail_calls(std::vector<Calls::Call> calls, const wire::Failure& failure);
  /// Gives an answer to the one who waits for it. Throws what a handler throws.
  void answer(PeerId peer, const wire::Header& header, std::span<const std::byte> payload);
  static void fail_handler(const ReplyHandler& handler, const wire::Failure& failure);

  static zmq::message_t to_message(std::string frame);

  boost::asio::io_context& io_;
  SocketOptions socket_options_;
  std::shared_ptr<zmq::context_t> context_;
  zmq::socket_t socket_;
  ZmqReactor reactor_;
  Calls calls_;
  Counters counters_;
  std::atomic<std::uint64_t> progress_{0};
  bool closed_ = false;

 private:
  Pumped pump();
  void post_deferred();
  void arm_deadlines();
  void on_deadline();
  void arm_tick();
  void on_tick();
  Milliseconds late() const;

  boost::asio::steady_timer deadline_timer_;
  boost::asio::steady_timer tick_timer_;
  Clock::time_point armed_for_ = Clock::time_point::max();
  Milliseconds interval_{0};
  Milliseconds timeout_{0};
  std::chrono::nanoseconds tick_due_{0};  // on the clock that goes on while the machine sleeps
  Milliseconds last_stall_{0};
  Clock::time_point last_stall_ended_{};
  std::deque<std::function<void()>> deferred_;
  bool deferred_posted_ = false;
};

}  // namespace troupe::control
