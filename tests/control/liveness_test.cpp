#include "tests/control/harness.h"
#include "tests/support/doctest.h"

namespace troupe::control::testing {
namespace {

/// Long beside what a loop of a busy machine stands still for, short beside what a test may take.
constexpr auto kTimeout = 2s;

ServerOptions quick(const std::string& endpoint) {
  auto options = server_at(endpoint);
  options.heartbeat_interval = 20ms;
  options.heartbeat_timeout = kTimeout;
  return options;
}

}  // namespace

TEST_CASE("idle links stay up by heartbeats, which carry the work loop's progress") {
  Event<std::string> lost;
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, quick(folder.endpoint("control")));
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  peer.run([&](Connection& c) { c.on_lost([&](const Loss& loss) { lost.set(loss.why); }); });
  const PeerId id = welcome(peer);
  const auto progress = [&] {
    return server.run([&](Server& s) { return s.vitals(id).value().progress; });
  };
  peer.run([](Connection& c) { c.set_progress(41); });
  CHECK(eventually([&] { return progress() == 41; }));
  const auto moved = server.run([&](Server& s) { return s.vitals(id)->progress_changed; });
  // Heartbeats come all the while, longer than a link may be silent, but they show that the work
  // stands still.
  PeerVitals vitals;
  CHECK(eventually([&] {
    vitals = server.run([&](Server& s) { return s.vitals(id).value(); });
    return vitals.heard - moved > 3 * kTimeout / 2;
  }));
  CHECK(vitals.progress_changed == moved);
  CHECK_FALSE(lost.happened());
  CHECK(server.run([](Server& s) { return s.peers(); }) == 1);
}

TEST_CASE("a peer whose loop stands still is lost, though its sockets live") {
  Event<std::string> lost, told;
  Event<wire::Failure> failed;
  std::promise<void> release;
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, quick(folder.endpoint("control")));
  server.run([&](Server& s) { s.on_lost([&](PeerId, const Loss& loss) { lost.set(loss.why); }); });
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  peer.run([&](Connection& c) { c.on_lost([&](const Loss& loss) { told.set(loss.why); }); });
  const PeerId id = welcome(peer);
  Event<bool> standing;
  boost::asio::post(there.io, [&] {
    standing.set(true);
    release.get_future().wait_for(60s);
  });
  standing.wait();
  const auto began = Clock::now();
  server.run([&](Server& s) {
    s.request(id, wire::Ping{}, 60s, [&](const Reply& reply) { failed.set(reply.failure()); });
  });
  const std::string why = lost.wait();
  CHECK(why.find("no sign of life for") != std::string::npos);
  CHECK(Clock::now() - began < 30s);
  CHECK(failed.wait().code == wire::FailureCode::lost);

  // When it wakes up, it learns that it was given up, and that this was for its own silence.
  release.set_value();
  const std::string says = told.wait();
  CAPTURE(says);
  CHECK(says.starts_with("this process stood still for "));
  CHECK(says.find("no sign of life") != std::string::npos);
}

TEST_CASE("a server whose loop stands still is given up by its peers") {
  Event<std::string> lost;
  std::promise<void> release;
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, quick(folder.endpoint("control")));
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  peer.run([&](Connection& c) { c.on_lost([&](const Loss& loss) { lost.set(loss.why); }); });
  welcome(peer);
  boost::asio::post(here.io, [&] { release.get_future().wait_for(60s); });
  CHECK(lost.wait().find("no sign of life from the controller") != std::string::npos);
  release.set_value();
}

TEST_CASE("a server that was away for long does not blame its peers") {
  struct Lost {
    std::string why;
    std::uint64_t sent_before;
  };
  Event<Lost> lost;
  const IpcFolder folder;
  Loop here;
  On<Server> server(here, quick(folder.endpoint("control")));
  server.run([&](Server& s) {
    s.on_lost([&](PeerId, const Loss& loss) { lost.set({loss.why, s.counters().messages_sent}); });
  });
  RawPeer raw(folder.endpoint("control"));
  raw.greet();
  const auto sent = [](Server& s) { return s.counters().messages_sent; };
  const auto before = server.run([&](Server& s) {
    std::this_thread::sleep_for(kTimeout + 500ms);
    return sent(s);
  });
  const auto loss = lost.wait();
  CHECK(loss.why.find("no sign of life for ") != std::string::npos);
  // Heartbeats leave at its ticks, at which it looks for silent peers: the one after the pause, the
  // next, and then the goodbye.
  CHECK(loss.sent_before >= before + 3);
}

}  // namespace troupe::control::testing
