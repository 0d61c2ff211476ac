#include "transport/control/reactor.h"

#include <sched.h>

#include <boost/asio/post.hpp>
#include <utility>

namespace troupe::control {
namespace asio = boost::asio;

ZmqReactor::ZmqReactor(asio::io_context& io, zmq::socket_t& socket,
                       std::chrono::microseconds patience, std::function<Pumped()> pump)
    : io_(io),
      descriptor_(io, socket.get(zmq::sockopt::fd)),
      patience_(patience),
      pump_(std::move(pump)) {}

ZmqReactor::~ZmqReactor() {
  stop();
}

void ZmqReactor::start(std::weak_ptr<void> owner) {
  owner_ = std::move(owner);
  touch();
}

void ZmqReactor::touch() {
  touched_ = true;
  queue_turn();
}

void ZmqReactor::queue_turn() {
  if (queued_ || pumping_ || stopped_) return;
  queued_ = true;
  asio::post(io_, [this, owner = owner_] {
    const auto alive = owner.lock();
    if (!alive) return;
    queued_ = false;
    turn();
  });
}

void ZmqReactor::stop() {
  if (stopped_) return;
  stopped_ = true;
  descriptor_.release();
}

void ZmqReactor::turn() {
  if (stopped_) return;
  Pumped pumped;
  pumping_ = true;
  try {
    pumped = pump_();
  } catch (...) {
    pumping_ = false;
    queue_turn();
    throw;
  }
  pumping_ = false;
  if (stopped_) return;
  const bool look = worth_looking(pumped);
  if (pumped.again) return queue_turn();
  if (!look) return arm();
  sched_yield();
  queue_turn();
}

bool ZmqReactor::worth_looking(Pumped pumped) {
  if (patience_.count() == 0) return false;
  const auto now = std::chrono::steady_clock::now();
  const bool waited_short = now - quiet_since_ < patience_;
  if (pumped.received) short_wait_ = waited_short;
  if (pumped.received || std::exchange(touched_, false)) {
    quiet_since_ = now;
    return short_wait_;
  }
  if (!waited_short) short_wait_ = false;
  return short_wait_;
}

void ZmqReactor::arm() {
  if (armed_) return;
  armed_ = true;
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this, owner = owner_](const boost::system::error_code& error) {
                           const auto alive = owner.lock();
                           if (!alive) return;
                           armed_ = false;
                           if (!error) turn();
                         });
}

}  // namespace troupe::control
