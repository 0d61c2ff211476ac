#include <string>
#include <thread>

#include "tests/control/harness.h"
#include "tests/support/doctest.h"

namespace troupe::control::testing {

// ZeroMQ ends the process when a connection breaks whose messages nobody reads, and its own
// heartbeat comes due then (stream_engine_base.cpp, out_event: "!_io_error").
TEST_CASE("a peer that vanishes with its pipe full while the server is away costs its link only") {
  const IpcFolder folder;
  Loop here, there;
  auto options = server_at(folder.endpoint("control"));
  options.socket.high_water_mark = 64;
  On<Server> server(here, options);
  Event<bool> away;
  server.run([&](Server& s) {
    s.on_message([&](PeerId, const wire::Header&, std::span<const std::byte>) {
      if (away.happened()) return;
      away.set(true);
      std::this_thread::sleep_for(4500ms);
    });
  });
  {
    RawPeer peer(folder.endpoint("control"));
    const auto id = peer.greet();
    const wire::Failure message{wire::FailureCode::none, std::string(4096, 'x')};
    for (std::uint64_t i = 0; i < 500; ++i)
      peer.send(message, 2 + i, id);
    away.wait();
    std::this_thread::sleep_for(300ms);
    peer.socket.set(zmq::sockopt::linger, 0);
  }
  On<Connection> another(there, peer_at(folder.endpoint("control")));
  welcome(another);
  CHECK(eventually([&] { return server.run([](Server& s) { return s.peers(); }) == 1; }));
}

}  // namespace troupe::control::testing
