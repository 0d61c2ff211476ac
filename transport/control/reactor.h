#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <zmq.hpp>

namespace troupe::control {

/// Result of a look at the socket.
struct Pumped {
  bool again = false;     // more lies there: look again at once
  bool received = false;  // there was something
};

/// Runs a ZeroMQ socket on an Asio loop.
///
/// ZeroMQ's descriptor only says "look again", and any send or receive may swallow that word. So
/// whoever has sent outside of `pump` must `touch`, and `pump` must receive until nothing is left
/// and look at ZMQ_EVENTS last.
class ZmqReactor {
 public:
  /// `pump` drains and flushes the socket. `patience`: as in SocketOptions.
  ZmqReactor(boost::asio::io_context& io, zmq::socket_t& socket, std::chrono::microseconds patience,
             std::function<Pumped()> pump);
  /// The descriptor is ZeroMQ's and is released, not closed.
  ~ZmqReactor();

  /// Handlers run only while `owner` lives. Call once.
  void start(std::weak_ptr<void> owner);
  /// Looks at the socket in the next loop turn.
  void touch();
  void stop();
  bool pumping() const { return pumping_; }

 private:
  void queue_turn();
  void turn();
  /// Returns whether a message is likely to be here sooner than a sleep would end.
  bool worth_looking(Pumped pumped);
  void arm();

  boost::asio::io_context& io_;
  boost::asio::posix::stream_descriptor descriptor_;
  std::chrono::microseconds patience_;
  std::function<Pumped()> pump_;
  std::weak_ptr<void> owner_;
  std::chrono::steady_clock::time_point quiet_since_{};  // the last thing sent or received
  bool touched_ = false;
  bool short_wait_ = false;  // the last wait was one
  bool armed_ = false;
  bool queued_ = false;
  bool pumping_ = false;
  bool stopped_ = false;
};

}  // namespace troupe::control
