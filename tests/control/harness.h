#pragma once
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <zmq.hpp>

#include "tests/support/patience.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"
#include "transport/control/server.h"
#include "transport/control/zap.h"
#include "transport/wire/codec.h"

namespace troupe::control::testing {

using namespace std::chrono_literals;

/// An Asio loop on a thread of its own, as in a process of its own.
class Loop {
 public:
  Loop() : thread_([this] { io.run(); }) {}
  ~Loop() {
    guard_.reset();
    io.stop();
    thread_.join();
  }

  /// Runs `work` on the loop and waits for its result.
  template <class F>
  auto run(F work) -> decltype(work()) {
    const auto task = std::make_shared<std::packaged_task<decltype(work())()>>(std::move(work));
    auto result = task->get_future();
    boost::asio::post(io, [task] { (*task)(); });
    if (result.wait_for(60s) != std::future_status::ready)
      throw std::runtime_error("the loop is stuck");
    return result.get();
  }

  boost::asio::io_context io{1};

 private:
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_ =
      boost::asio::make_work_guard(io);
  std::thread thread_;
};

/// An object that is made, used and destroyed on a loop.
template <class T>
class On {
 public:
  template <class... Args>
  explicit On(Loop& loop, Args&&... args) : loop_(loop) {
    loop_.run([&] { object_ = std::make_unique<T>(loop_.io, std::forward<Args>(args)...); });
  }
  ~On() { reset(); }
  void reset() {
    loop_.run([&] { object_.reset(); });
  }
  template <class F>
  auto run(F work) {
    return loop_.run([&] { return work(*object_); });
  }

 private:
  Loop& loop_;
  std::unique_ptr<T> object_;
};

/// Something that happens once on a loop and is waited for on the test's thread.
template <class T>
class Event {
 public:
  void set(T value) {
    const auto state = state_;  // the waiter may be gone before this returns
    if (state->times++ == 0) state->promise.set_value(std::move(value));
  }
  T wait(std::chrono::milliseconds limit = 60s) {
    if (future_.wait_for(limit) != std::future_status::ready)
      throw std::runtime_error("the event did not happen");
    return future_.get();
  }
  bool happened() const { return times() > 0; }
  int times() const { return state_->times; }

 private:
  struct State {
    std::promise<T> promise;
    std::atomic<int> times{0};
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::future<T> future_ = state_->promise.get_future();
};

using troupe::testing::eventually;

inline ServerOptions server_at(const std::string& endpoint) {
  ServerOptions options;
  options.endpoint = endpoint;
  options.heartbeat_interval = 50ms;
  return options;
}

inline ConnectionOptions peer_at(const std::string& endpoint, const std::string& name = "actor 0") {
  ConnectionOptions options;
  options.endpoint = endpoint;
  options.hello.role = PeerRole::actor;
  options.hello.name = name;
  options.welcome_deadline = 60s;
  return options;
}

/// Starts a connection and waits for its welcome.
inline PeerId welcome(On<Connection>& connection) {
  Event<wire::Welcome> welcomed;
  connection.run([&](Connection& c) {
    c.start([&](const wire::Welcome& w) { welcomed.set(w); },
            [&](const wire::Failure& f) {
              std::fprintf(stderr, "not welcomed: %s\n", f.what.c_str());
            });
  });
  return welcomed.wait().peer;
}

/// A bare ZeroMQ socket that says what it likes.
class RawPeer {
 public:
  explicit RawPeer(const std::string& endpoint, const std::string& routing = "raw-peer",
                   const std::optional<ClientKeys>& keys = std::nullopt) {
    if (keys) use_keys(socket, *keys);
    socket.set(zmq::sockopt::linger, 200);
    socket.set(zmq::sockopt::routing_id, routing);
    socket.set(zmq::sockopt::rcvtimeo, 60'000);
    socket.connect(endpoint);
  }
  template <class M>
  void send(const M& message, std::uint64_t sequence, std::uint64_t sender = 0,
            std::uint64_t correlation = 0) {
    wire::Header header;
    header.incarnation = incarnation;
    header.sequence = sequence;
    header.sender = sender;
    header.correlation = correlation;
    send_bytes(wire::encode_frame(header, message));
  }
  void send_bytes(const std::string& bytes) { socket.send(zmq::buffer(bytes)); }
  /// The next message of kind M; others are skipped.
  template <class M>
  M receive() {
    for (;;) {
      zmq::message_t frame;
      if (!socket.recv(frame)) throw std::runtime_error("nothing came");
      const std::span<const std::byte> bytes{frame.data<std::byte>(), frame.size()};
      if (wire::decode_header(bytes).kind == M::kKind)
        return wire::decode<M>(wire::payload_of(bytes));
    }
  }
  PeerId greet() {
    send(wire::Hello{PeerRole::actor, "raw", "host", 1, "raw", {}}, 1);
    return receive<wire::Welcome>().peer;
  }

  zmq::context_t context;
  zmq::socket_t socket{context, zmq::socket_type::dealer};
  std::uint64_t incarnation = 77;
};

}  // namespace troupe::control::testing
