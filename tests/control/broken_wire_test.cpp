#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "tests/support/wire.h"
#include "transport/wire/client_messages.h"

namespace troupe::control::testing {

TEST_CASE("what a broken tcp connection swallowed is noticed, also when it was the last word") {
  Loop here, there;
  On<Server> server(here, server_at("tcp://127.0.0.1:0"));
  troupe::testing::Wire wire(
      parse_endpoint(server.run([](Server& s) { return s.endpoint(); })).port);
  // By the gap in the numbers; or, where a heartbeat to the peer falls into the moment without a
  // connection, by that.
  Event<std::string> noticed;
  std::atomic<int> heard = 0;
  server.run([&](Server& s) {
    s.on_gap([&](PeerId, std::uint64_t missing) {
      noticed.set(missing >= 10 ? "gap" : "a gap of " + std::to_string(missing));
    });
    s.on_lost([&](PeerId, const Loss&) { noticed.set("lost"); });
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
