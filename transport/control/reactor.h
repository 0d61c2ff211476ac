#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <zmq.hpp>

namespace troupe::control {

/// Runs a ZeroMQ socket on an Asio loop.
///
/// ZeroMQ's descriptor only says "look again", and any send or receive may swallow that word. So
/// whoever has sent outside of `pump` must `touch`, and `pump` must receive until nothing is left
/// and look at ZMQ_EVENTS last.
class ZmqReactor {
 public:
  /// `pump` drains and flushes the socket and returns true if it wants to be called again at once.
  ZmqReactor(boost::asio::io_context& io, zmq::socket_t& socket, std::chrono::microseconds spin,
             std::function<bool()> pump);
  /// The descriptor is ZeroMQ's and is released, not closed.
  ~ZmqReactor();

  /// Handlers run only while `owner` lives. Call once.
  void start(std::weak_ptr<void> owner);
  /// Looks at the socket in the next loop turn.
  void touch();
  void stop();
  bool pumping() const { return pumping_; }

 private:
  void queue_turn(bool fresh);
  void turn(bool fresh);
  void arm();

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor descriptor_;
  std::chrono::microseconds spin_;
  std::function<bool()> pump_;
  std::weak_ptr<void> owner_;
  std::chrono::steady_clock::time_point spin_until_{};
  bool armed_ = false;
  bool queued_ = false;
  bool pumping_ = false;
  bool stopped_ = false;
};

}  // namespace troupe::control
