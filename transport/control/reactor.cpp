#include "transport/control/reactor.h"

#include <boost/asio/post.hpp>

namespace troupe::control {
namespace asio = boost::asio;

ZmqReactor::ZmqReactor(asio::io_context& io, zmq::socket_t& socket, std::chrono::microseconds spin,
                       std::function<bool()> pump)
    : io_(io), descriptor_(io, socket.get(zmq::sockopt::fd)), spin_(spin), pump_(std::move(pump)) {}

ZmqReactor::~ZmqReactor() {
  stop();
}

void ZmqReactor::start(std::weak_ptr<void> owner) {
  owner_ = std::move(owner);
  touch();
}

void ZmqReactor::touch() {
  queue_turn(true);
}

void ZmqReactor::queue_turn(bool fresh) {
  if (queued_ || pumping_ || stopped_) return;
  queued_ = true;
  asio::post(io_, [this, fresh, owner = owner_] {
    const auto alive = owner.lock();
    if (!alive) return;
    queued_ = false;
    turn(fresh);
  });
}

void ZmqReactor::stop() {
  if (stopped_) return;
  stopped_ = true;
  descriptor_.release();
}

void ZmqReactor::turn(bool fresh) {
  if (stopped_) return;
  bool more = false;
  pumping_ = true;
  try {
    more = pump_();
  } catch (...) {
    pumping_ = false;
    queue_turn(true);
    throw;
  }
  pumping_ = false;
  if (stopped_) return;
  if (spin_.count() > 0) {
    const auto now = std::chrono::steady_clock::now();
    if (more || fresh) spin_until_ = now + spin_;
    more = more || now < spin_until_;
  }
  if (more) return queue_turn(false);
  arm();
}

void ZmqReactor::arm() {
  if (armed_) return;
  armed_ = true;
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [this, owner = owner_](const boost::system::error_code& error) {
                           const auto alive = owner.lock();
                           if (!alive) return;
                           armed_ = false;
                           if (!error) turn(true);
                         });
}

}  // namespace troupe::control
