#include <filesystem>
#include <vector>

#include "tests/control/harness.h"
#include "tests/support/doctest.h"

namespace troupe::control::testing {
namespace {

/// A protocol version that is not this one.
constexpr int kOther = wire::kProtocolVersion + 1;

std::vector<std::string> endpoints(const IpcFolder& folder) {
  return {folder.endpoint("control"), "tcp://127.0.0.1:0"};
}

}  // namespace

TEST_CASE("hello, welcome, messages both ways, goodbye") {
  const IpcFolder folder;
  for (const std::string& where : endpoints(folder)) {
    CAPTURE(where);
    Event<PeerInfo> came;
    Event<std::string> heard_here, heard_there, lost;
    Loop here, there;
    On<Server> server(here, server_at(where));
    server.run([&](Server& s) {
      s.on_connect([&](const PeerInfo& info) -> std::optional<std::string> {
        came.set(info);
        return std::nullopt;
      });
      s.on_ready([&](PeerId peer) {
        CHECK(s.send(peer, wire::Failure{wire::FailureCode::none, "after the welcome"}));
      });
      s.on_message([&](PeerId, const wire::Header&, std::span<const std::byte> payload) {
        heard_here.set(wire::decode<wire::Failure>(payload).what);
      });
      s.on_lost([&](PeerId, const Loss& loss) { lost.set(loss.why); });
    });
    const std::string endpoint = server.run([](Server& s) { return s.endpoint(); });
    auto options = peer_at(endpoint, "actor 3");
    options.hello.attributes = {{"device", "cpu"}};
    On<Connection> peer(there, options);
    peer.run([&](Connection& c) {
      CHECK_FALSE(c.send(wire::Ping{}));
      c.on_message([&](const wire::Header&, std::span<const std::byte> payload) {
        heard_there.set(wire::decode<wire::Failure>(payload).what);
      });
    });
    const PeerId id = welcome(peer);
    const PeerInfo info = came.wait();
    CHECK(info.id == id);
    CHECK(info.incarnation == peer.run([](Connection& c) { return c.incarnation(); }));
    CHECK(info.hello.name == "actor 3");
    CHECK(info.hello.pid == static_cast<std::uint32_t>(getpid()));
    CHECK_FALSE(info.hello.host.empty());
    CHECK(info.hello.attributes.at("device") == "cpu");
    CHECK(heard_there.wait() == "after the welcome");
    CHECK(peer.run([](Connection& c) {
      return c.send(wire::Failure{wire::FailureCode::none, "up"});
    }));
    CHECK(heard_here.wait() == "up");
    peer.run([](Connection& c) { c.close("enough"); });
    CHECK(lost.wait() == "said goodbye: enough");
    CHECK(server.run([](Server& s) { return s.peers(); }) == 0);
  }
}

TEST_CASE("the server's program can refuse a peer, with its reason") {
  Event<wire::Failure> failed;
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  server.run([](Server& s) {
    s.on_connect([](const PeerInfo& info) {
      return std::optional<std::string>("no room for " + info.hello.name);
    });
  });
  peer.run([&](Connection& c) {
    c.start([](auto&) {}, [&](const wire::Failure& f) { failed.set(f); });
  });
  const wire::Failure failure = failed.wait();
  CHECK(failure.code == wire::FailureCode::refused);
  CHECK(failure.what.find("refuses: no room for actor 0") != std::string::npos);
}

TEST_CASE("another protocol version is refused, and the reason names both") {
  const IpcFolder folder;
  Loop here;
  On<Server> server(here, server_at(folder.endpoint("control")));
  RawPeer raw(folder.endpoint("control"));
  std::string hello = wire::encode_frame({}, wire::Hello{});
  hello[4] = static_cast<char>(kOther);
  raw.send_bytes(hello);
  const auto refuse = raw.receive<wire::Refuse>();
  CHECK(refuse.reason.find("version " + std::to_string(kOther)) != std::string::npos);
  CHECK(refuse.reason.find("version " + std::to_string(wire::kProtocolVersion)) !=
        std::string::npos);
  CHECK(server.run([](Server& s) { return s.peers(); }) == 0);
}

TEST_CASE("a connection to a controller of another version says so") {
  const IpcFolder folder;
  zmq::context_t context;
  zmq::socket_t router(context, zmq::socket_type::router);
  router.bind(folder.endpoint("control"));
  Event<wire::Failure> failed;
  Loop loop;
  On<Connection> peer(loop, peer_at(folder.endpoint("control")));
  peer.run([&](Connection& c) {
    c.start([](auto&) {}, [&](const wire::Failure& f) { failed.set(f); });
  });
  zmq::message_t routing, frame;
  REQUIRE(router.recv(routing));
  REQUIRE(router.recv(frame));
  std::string answer = wire::encode_frame({}, wire::Refuse{"from the future"});
  answer[4] = static_cast<char>(kOther);
  router.send(routing, zmq::send_flags::sndmore);
  router.send(zmq::buffer(answer));
  const wire::Failure failure = failed.wait();
  CHECK(failure.code == wire::FailureCode::version_mismatch);
  CHECK(failure.what.find("version " + std::to_string(kOther)) != std::string::npos);
  CHECK(failure.what.find("version " + std::to_string(wire::kProtocolVersion)) !=
        std::string::npos);
}

TEST_CASE("where nobody listens, a connection fails at its deadline") {
  const IpcFolder folder;
  for (const std::string& endpoint :
       {folder.endpoint("nobody"), std::string("tcp://127.0.0.1:9")}) {
    Event<wire::Failure> failed;
    Loop loop;
    auto options = peer_at(endpoint);
    options.welcome_deadline = 300ms;
    On<Connection> peer(loop, options);
    const auto began = Clock::now();
    peer.run([&](Connection& c) {
      c.start([](auto&) {}, [&](const wire::Failure& f) { failed.set(f); });
    });
    const wire::Failure failure = failed.wait();
    CHECK(failure.code == wire::FailureCode::not_found);
    CHECK(failure.what == "[control] no controller at " + endpoint + " (waited 300 ms)");
    CHECK(Clock::now() - began < 30s);
  }
}

TEST_CASE("a process may come before its controller") {
  Event<wire::Welcome> welcomed;
  const IpcFolder folder;
  Loop here, there;
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  peer.run([&](Connection& c) {
    c.start([&](const wire::Welcome& w) { welcomed.set(w); }, [](auto&) {});
  });
  std::this_thread::sleep_for(200ms);
  On<Server> server(here, server_at(folder.endpoint("control")));
  CHECK(welcomed.wait().peer != 0);
}

TEST_CASE("a restarted process is a new peer") {
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  std::vector<PeerId> ids;
  std::vector<std::uint64_t> incarnations;
  for (int life = 0; life < 3; ++life) {
    On<Connection> peer(there, peer_at(folder.endpoint("control"), "actor 1"));
    ids.push_back(welcome(peer));
    incarnations.push_back(peer.run([](Connection& c) { return c.incarnation(); }));
  }
  CHECK(ids[0] < ids[1]);
  CHECK(ids[1] < ids[2]);
  CHECK(incarnations[0] != incarnations[1]);
  // Those who left without goodbye are found out by the next heartbeat that cannot be delivered.
  CHECK(eventually([&] { return server.run([](Server& s) { return s.peers(); }) == 0; }));
}

TEST_CASE("another controller in the old one's place ends the link") {
  Event<std::string> lost;
  const IpcFolder folder;
  Loop here, there;
  auto server = std::make_unique<On<Server>>(here, server_at(folder.endpoint("control")));
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  peer.run([&](Connection& c) { c.on_lost([&](const Loss& loss) { lost.set(loss.why); }); });
  welcome(peer);
  server.reset();
  server = std::make_unique<On<Server>>(here, server_at(folder.endpoint("control")));
  CHECK(lost.wait().find("another controller has taken the place") != std::string::npos);
}

TEST_CASE("a goodbye is read, though its sender's socket is closed when something is sent to it") {
  Event<std::string> lost;
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  server.run([&](Server& s) { s.on_lost([&](PeerId, const Loss& loss) { lost.set(loss.why); }); });
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  const PeerId id = welcome(peer);
  server.run([&](Server& s) {
    peer.run([](Connection& c) { c.close("enough"); });
    std::this_thread::sleep_for(200ms);  // the socket notices, this loop has not looked yet
    s.send(id, wire::Ping{});
  });
  CHECK(lost.wait() == "said goodbye: enough");
}

TEST_CASE("dropping a peer tells it why") {
  Event<std::string> lost;
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  On<Connection> peer(there, peer_at(folder.endpoint("control")));
  peer.run([&](Connection& c) { c.on_lost([&](const Loss& loss) { lost.set(loss.why); }); });
  const PeerId id = welcome(peer);
  server.run([&](Server& s) { s.drop(id, "not needed"); });
  CHECK(lost.wait().find("not needed") != std::string::npos);
  CHECK_FALSE(peer.run([](Connection& c) { return c.connected(); }));
}

TEST_CASE("one thousand messages from each of four peers come in order") {
  std::map<PeerId, std::vector<std::string>> heard;
  std::atomic<int> total{0};
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  server.run([&](Server& s) {
    s.on_message([&](PeerId peer, const wire::Header&, std::span<const std::byte> payload) {
      heard[peer].push_back(wire::decode<wire::Failure>(payload).what);
      ++total;
    });
  });
  std::vector<std::unique_ptr<On<Connection>>> peers;
  for (int i = 0; i < 4; ++i) {
    peers.push_back(std::make_unique<On<Connection>>(there, peer_at(folder.endpoint("control"))));
    welcome(*peers.back());
  }
  for (int i = 0; i < 1000; ++i) {
    for (auto& peer : peers) {
      peer->run([&](Connection& c) {
        c.send(wire::Failure{wire::FailureCode::none, std::to_string(i)});
      });
    }
  }
  REQUIRE(eventually([&] { return total == 4000; }));
  server.run([&](Server& s) {
    CHECK(s.counters().gaps == 0);
    CHECK(s.counters().duplicates == 0);
    for (const auto& [peer, texts] : heard) {
      for (int i = 0; i < 1000; ++i)
        REQUIRE(texts[i] == std::to_string(i));
    }
  });
}

TEST_CASE("a process that has a link gets no second one, and its holder is named") {
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  Event<std::pair<PeerId, std::string>> rival;
  server.run([&](Server& s) {
    s.on_rival([&](PeerId holder, const PeerInfo& who) { rival.set({holder, who.hello.name}); });
  });
  auto options = peer_at(folder.endpoint("control"), "holder");
  options.incarnation = 4711;
  On<Connection> holder(there, options);
  const PeerId id = welcome(holder);
  options.incarnation = 4712;
  On<Connection> another(there, options);
  welcome(another);
  const auto secret = holder.run([](Connection& c) { return c.secret(); });
  const auto others = another.run([](Connection& c) { return c.secret(); });
  CHECK(secret.size() == 32);
  CHECK(secret != others);
  server.run([&](Server& s) {
    CHECK(s.holder_of(4711, secret) == id);
    CHECK_FALSE(s.holder_of(4711, others));
    CHECK_FALSE(s.holder_of(4711, ""));
    CHECK_FALSE(s.holder_of(4713, secret));
  });
  options.incarnation = 4711;
  options.hello.name = "rival";
  On<Connection> second(there, options);
  Event<std::string> refused;
  second.run([&](Connection& c) {
    c.start([&](const auto&) { refused.set("welcome"); },
            [&](const wire::Failure& failure) { refused.set(failure.what); });
  });
  CHECK(refused.wait().ends_with("refuses: this process has a link already"));
  CHECK(rival.wait() == std::pair<PeerId, std::string>{id, "rival"});
  holder.reset();
  REQUIRE(eventually([&] { return !server.run([](Server& s) { return s.peer_of(4711); }); }));
  On<Connection> later(there, options);
  CHECK(welcome(later) > id);
}

TEST_CASE("nothing is said in a folder that others may write in; one that comes late is found") {
  const IpcFolder scratch;
  const auto folder = scratch.path() / "run";
  const std::string endpoint = "ipc://" + (folder / "control").string();
  Loop here, there;
  On<Connection> early(there, peer_at(endpoint));  // before there is a folder
  Event<wire::Welcome> welcomed;
  early.run([&](Connection& c) {
    c.start([&](const wire::Welcome& w) { welcomed.set(w); }, [](const wire::Failure&) {});
  });
  std::this_thread::sleep_for(150ms);
  On<Server> server(here, server_at(endpoint));
  CHECK(welcomed.wait().peer > 0);
  const auto received = [&] {
    return server.run([](Server& s) { return s.counters().strangers + s.peers(); });
  };
  const auto before = received();
  std::filesystem::permissions(folder, std::filesystem::perms::all);
  On<Connection> late(there, peer_at(endpoint));
  Event<wire::Failure> failed;
  late.run([&](Connection& c) {
    c.start([](const wire::Welcome&) {}, [&](const wire::Failure& f) { failed.set(f); });
  });
  const auto failure = failed.wait();
  CHECK(failure.code == wire::FailureCode::refused);
  CHECK(failure.what.find("other users can write in folder " + folder.string()) !=
        std::string::npos);
  CHECK(received() == before);
}

}  // namespace troupe::control::testing
