#include "tests/support/wire.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <deque>
#include <future>
#include <stdexcept>
#include <thread>
#include <vector>

namespace troupe::testing {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kPiece = 65'536;
constexpr std::size_t kUnderWay = 64;  // pieces a lane; then nothing more is read
constexpr int kFirstPort = 12'000, kPorts = 10'000;

tcp::endpoint here(int port) {
  return {asio::ip::make_address("127.0.0.1"), static_cast<unsigned short>(port)};
}

}  // namespace

enum class WireTrouble { none, replay, truncate };

/// One way of one connection.
struct WireLane {
  WireLane(asio::io_context& io, tcp::socket& from, tcp::socket& to, bool to_server)
      : from(from), to(to), to_server(to_server), timer(io) {}
  struct Piece {
    std::string bytes;
    Clock::time_point due;
  };
  tcp::socket& from;
  tcp::socket& to;
  bool to_server;
  std::array<char, kPiece> in;
  std::deque<Piece> pieces;
  bool reading = false, writing = false, last = false;  // last: ends with what is under way
  WireTrouble trouble = WireTrouble::none;
  asio::steady_timer timer;
};

struct WirePair {
  explicit WirePair(asio::io_context& io)
      : outer(io), inner(io), out(io, outer, inner, true), back(io, inner, outer, false) {}
  void close() {
    boost::system::error_code ignored;
    outer.close(ignored);
    inner.close(ignored);
    out.timer.cancel();
    back.timer.cancel();
  }
  tcp::socket outer, inner;
  WireLane out, back;
};

class Wire::Impl {
 public:
  Impl(std::uint16_t server_port, int doors) : server_port_(server_port) {
    open(doors);
    for (int door = 0; door < doors; ++door)
      accept(door);
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Impl() {
    io_.stop();
    thread_.join();
  }

  void run(std::function<void()> action) {
    std::packaged_task<void()> task(std::move(action));
    auto done = task.get_future();
    asio::post(io_, [&] { task(); });
    done.get();
  }
  void strike(WireTrouble trouble) {
    for (const auto& pair : pairs_)
      pair->out.trouble = pair->back.trouble = trouble;
  }
  void cut() {
    swallowing_ = false;
    for (const auto& pair : pairs_)
      pair->close();
    pairs_.clear();
  }

  std::uint16_t port_ = 0;
  std::chrono::milliseconds delay_{0};
  std::uint64_t bits_ = 0;
  std::size_t replayed_ = 0;
  bool swallowing_ = false, shut_ = false;
  std::atomic<std::size_t> swallowed_ = 0, struck_ = 0;

 private:
  /// Ports side by side that are free.
  void open(int doors) {
    for (int tried = 0; tried < kPorts / 2; ++tried) {
      const int port = kFirstPort + (getpid() * 2 + tried * 2) % kPorts;
      acceptors_.clear();
      boost::system::error_code failed;
      for (int door = 0; door < doors && !failed; ++door) {
        auto& acceptor = acceptors_.emplace_back(io_);
        acceptor.open(tcp::v4());
        acceptor.set_option(tcp::acceptor::reuse_address(true));
        acceptor.bind(here(port + door), failed);
        if (!failed) acceptor.listen(tcp::acceptor::max_listen_connections, failed);
      }
      port_ = static_cast<std::uint16_t>(port);
      if (!failed) return;
    }
    throw std::runtime_error("[tests] no free ports for a wire");
  }

  void accept(int door) {
    auto pair = std::make_shared<WirePair>(io_);
    acceptors_[static_cast<std::size_t>(door)].async_accept(
        pair->outer, [this, pair, door](const boost::system::error_code& error) {
          if (error) return;
          boost::system::error_code failed;
          if (!shut_) pair->inner.connect(here(server_port_ + door), failed);
          if (shut_ || failed) {
            pair->close();
          } else {
            for (auto* socket : {&pair->outer, &pair->inner})
              socket->set_option(tcp::no_delay(true), failed);
            pairs_.push_back(pair);
            read(pair, pair->out);
            read(pair, pair->back);
          }
          accept(door);
        });
  }

  void read(const std::shared_ptr<WirePair>& pair, WireLane& lane) {
    if (lane.reading || lane.last || lane.pieces.size() >= kUnderWay) return;
    lane.reading = true;
    lane.from.async_read_some(
        asio::buffer(lane.in),
        [this, pair, &lane](const boost::system::error_code& error, std::size_t got) {
          lane.reading = false;
          if (error) {
            lane.last = true;
            if (lane.pieces.empty()) pair->close();
            return;
          }
          take(lane, std::string(lane.in.data(), got));
          write(pair, lane);
          read(pair, lane);
        });
  }

  void take(WireLane& lane, std::string bytes) {
    if (lane.to_server && swallowing_) {
      swallowed_ += bytes.size();
      return;
    }
    const WireTrouble trouble = std::exchange(lane.trouble, WireTrouble::none);
    if (trouble != WireTrouble::none) ++struck_;
    if (trouble == WireTrouble::replay)
      bytes += bytes.substr(bytes.size() - std::min(bytes.size(), replayed_));
    if (trouble == WireTrouble::truncate) {
      bytes.resize(bytes.size() / 2);
      lane.last = true;
    }
    auto& free_at = free_at_[lane.to_server];
    free_at = std::max(free_at, Clock::now());
    if (bits_ > 0) free_at += std::chrono::microseconds(bytes.size() * 8 * 1'000'000 / bits_);
    lane.pieces.push_back({std::move(bytes), free_at + delay_});
  }

  void write(const std::shared_ptr<WirePair>& pair, WireLane& lane) {
    if (lane.writing) return;
    if (lane.pieces.empty()) {
      if (lane.last) pair->close();
      return;
    }
    lane.writing = true;
    lane.timer.expires_at(lane.pieces.front().due);
    lane.timer.async_wait([this, pair, &lane](const boost::system::error_code& ended) {
      if (ended) return;
      asio::async_write(lane.to, asio::buffer(lane.pieces.front().bytes),
                        [this, pair, &lane](const boost::system::error_code& error, std::size_t) {
                          if (error) return pair->close();
                          lane.pieces.pop_front();
                          lane.writing = false;
                          write(pair, lane);
                          read(pair, lane);
                        });
    });
  }

  std::uint16_t server_port_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(io_);
  std::deque<tcp::acceptor> acceptors_;
  std::vector<std::shared_ptr<WirePair>> pairs_;
  std::array<Clock::time_point, 2> free_at_{};  // of each way
  std::thread thread_;
};

Wire::Wire(std::uint16_t server_port, int doors)
    : impl_(std::make_unique<Impl>(server_port, doors)) {}
Wire::~Wire() = default;

std::uint16_t Wire::port() const {
  return impl_->port_;
}
void Wire::delay(std::chrono::milliseconds by) {
  impl_->run([&] { impl_->delay_ = by; });
}
void Wire::throttle(std::uint64_t bits_per_second) {
  impl_->run([&] { impl_->bits_ = bits_per_second; });
}
void Wire::swallow() {
  impl_->run([&] { impl_->swallowing_ = true; });
}
std::size_t Wire::swallowed() const {
  return impl_->swallowed_;
}
void Wire::replay(std::size_t count) {
  impl_->run([&] {
    impl_->replayed_ = count;
    impl_->strike(WireTrouble::replay);
  });
}
void Wire::truncate() {
  impl_->run([&] { impl_->strike(WireTrouble::truncate); });
}
std::size_t Wire::struck() const {
  return impl_->struck_;
}
void Wire::cut(bool for_good) {
  impl_->run([&] {
    impl_->shut_ = for_good;
    impl_->cut();
  });
}

}  // namespace troupe::testing
