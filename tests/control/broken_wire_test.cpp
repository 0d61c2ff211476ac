#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "transport/wire/client_messages.h"

namespace troupe::control::testing {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// A wire between a connection and its server that can be cut: passes tcp on, and on `swallow`
/// takes what the connection sends without passing it on.
class Wire {
 public:
  explicit Wire(const std::string& server)
      : server_port_(static_cast<unsigned short>(std::stoi(server.substr(server.rfind(':') + 1)))),
        acceptor_(loop_.io, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0)) {
    port_ = acceptor_.local_endpoint().port();
    loop_.run([this] { accept(); });
  }
  ~Wire() {
    loop_.run([this] { acceptor_.close(); });
    cut();
  }
  std::string endpoint() const { return "tcp://127.0.0.1:" + std::to_string(port_); }
  void swallow() {
    loop_.run([this] { swallowing_ = true; });
  }
  /// Ends all connections; new ones pass again.
  void cut() {
    loop_.run([this] {
      swallowing_ = false;
      for (const auto& pair : pairs_)
        pair->close();
      pairs_.clear();
    });
  }
  std::size_t swallowed() {
    return loop_.run([this] { return swallowed_; });
  }

 private:
  struct Pair {
    explicit Pair(asio::io_context& io) : outer(io), inner(io) {}
    void close() {
      boost::system::error_code ignored;
      outer.close(ignored);
      inner.close(ignored);
    }
    tcp::socket outer, inner;
    std::array<char, 65536> from_outer, from_inner;
  };

  void accept() {
    auto pair = std::make_shared<Pair>(loop_.io);
    acceptor_.async_accept(pair->outer, [this, pair](const boost::system::error_code& error) {
      if (error) return;
      pair->inner.connect(tcp::endpoint(asio::ip::make_address("127.0.0.1"), server_port_));
      pairs_.push_back(pair);
      pass(pair, pair->outer, pair->inner, pair->from_outer, true);
      pass(pair, pair->inner, pair->outer, pair->from_inner, false);
      accept();
    });
  }
  void pass(const std::shared_ptr<Pair>& pair, tcp::socket& from, tcp::socket& to,
            std::array<char, 65536>& bytes, bool outwards) {
    from.async_read_some(
        asio::buffer(bytes),
        [=, this, &from, &to, &bytes](const boost::system::error_code& error, std::size_t got) {
          if (error) return pair->close();
          boost::system::error_code failed;
          if (outwards && swallowing_) {
            swallowed_ += got;
          } else {
            asio::write(to, asio::buffer(bytes, got), failed);
          }
          if (failed) return pair->close();
          pass(pair, from, to, bytes, outwards);
        });
  }

  unsigned short server_port_;
  unsigned short port_ = 0;
  bool swallowing_ = false;
  std::size_t swallowed_ = 0;
  Loop loop_;
  tcp::acceptor acceptor_;
  std::vector<std::shared_ptr<Pair>> pairs_;
};

}  // namespace

TEST_CASE("what a broken tcp connection swallowed is noticed, also when it was the last word") {
  Loop here, there;
  On<Server> server(here, server_at("tcp://127.0.0.1:0"));
  Wire wire(server.run([](Server& s) { return s.endpoint(); }));
  // By the gap in the numbers; or, where a heartbeat to the peer falls into the moment without a
  // connection, by that.
  Event<std::string> noticed;
  std::atomic<int> heard = 0;
  server.run([&](Server& s) {
    s.on_gap([&](PeerId, std::uint64_t missing) {
      noticed.set(missing >= 10 ? "gap" : "a gap of " + std::to_string(missing));
    });
    s.on_lost([&](PeerId, const std::string&) { noticed.set("lost"); });
    s.on_message([&](PeerId, const wire::Header&, std::span<const std::byte>) { ++heard; });
  });
  On<Connection> peer(there, peer_at(wire.endpoint()));
  welcome(peer);
  const auto say = [&](int times) {
    for (int i = 0; i < times; ++i)
      peer.run([](Connection& c) { c.send(wire::ListJobs{}); });
  };
  say(10);
  REQUIRE(eventually([&] { return heard == 10; }));
  wire.swallow();
  say(10);
  REQUIRE(eventually([&] { return wire.swallowed() > 10 * wire::kHeaderSize; }));
  wire.cut();
  // Nothing more is said: the next heartbeat over the new connection shows the gap.
  const std::string how = noticed.wait();
  CHECK((how == "gap" || how == "lost"));
  CHECK(heard == 10);
}

TEST_CASE("a pipe that is full loses nothing: what has no room waits in order") {
  const IpcFolder folder;
  Loop here, there;
  auto narrow = server_at(folder.endpoint("control"));
  narrow.socket.high_water_mark = 2;
  On<Server> server(here, narrow);
  std::atomic<int> from_peer = 0;
  std::atomic<bool> in_order = true;
  server.run([&](Server& s) {
    s.on_message([&](PeerId, const wire::Header&, std::span<const std::byte> payload) {
      if (wire::decode<wire::CancelJob>(payload).job != static_cast<std::uint64_t>(from_peer++))
        in_order = false;
    });
  });
  auto options = peer_at(folder.endpoint("control"));
  options.socket.high_water_mark = 2;
  On<Connection> peer(there, options);
  std::atomic<int> from_server = 0;
  peer.run([&](Connection& c) {
    c.on_message([&](const wire::Header&, std::span<const std::byte> payload) {
      if (wire::decode<wire::CancelJob>(payload).job != static_cast<std::uint64_t>(from_server++))
        in_order = false;
    });
  });
  const PeerId id = welcome(peer);
  constexpr int kMany = 5000;
  peer.run([&](Connection& c) {
    for (std::uint64_t i = 0; i < kMany; ++i)
      REQUIRE(c.send(wire::CancelJob{i}));
  });
  server.run([&](Server& s) {
    for (std::uint64_t i = 0; i < kMany; ++i)
      REQUIRE(s.send(id, wire::CancelJob{i}));
  });
  CHECK(eventually([&] { return from_peer == kMany && from_server == kMany; }));
  CHECK(in_order);
  server.run([](Server& s) { CHECK(s.counters().gaps == 0); });
  peer.run([](Connection& c) { CHECK(c.counters().gaps == 0); });
}

}  // namespace troupe::control::testing
