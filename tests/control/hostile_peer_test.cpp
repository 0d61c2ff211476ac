#include <random>

#include "tests/control/harness.h"
#include "tests/support/doctest.h"

namespace troupe::control::testing {
namespace {

/// Decodes as a text of four gigabytes.
struct HugeLength {
  static constexpr wire::Kind kKind = wire::Kind::refuse;
  std::uint32_t length = 0xffffffff;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(length);
  }
};

/// A server with a well-behaved peer, whom nothing may disturb.
struct Scene {
  std::vector<std::string> heard;
  std::vector<std::pair<PeerId, std::string>> lost;
  std::vector<std::uint64_t> gaps;
  IpcFolder folder;
  std::string endpoint = folder.endpoint("control");
  Loop here, there;
  On<Server> server{here, server_at(endpoint)};
  On<Connection> good{there, peer_at(endpoint, "good")};
  PeerId good_id = welcome(good);

  Scene() {
    server.run([this](Server& s) {
      s.on_message([this](PeerId, const wire::Header&, std::span<const std::byte> payload) {
        heard.push_back(wire::decode<wire::Refuse>(payload).reason);
      });
      s.on_lost([this](PeerId peer, const Loss& loss) { lost.emplace_back(peer, loss.why); });
      s.on_gap([this](PeerId, std::uint64_t missing) { gaps.push_back(missing); });
    });
  }
  Counters counters() {
    return server.run([](Server& s) { return s.counters(); });
  }
  bool good_is_well() {
    Event<bool> answered;
    server.run([&](Server& s) {
      s.request(good_id, wire::Ping{"?"}, 60s,
                [&](const Reply& reply) { answered.set(reply.ok()); });
    });
    return answered.wait();
  }
  bool is_lost(PeerId peer, const std::string& why) {
    return eventually([&] {
      return server.run([&](Server&) {
        for (const auto& [id, text] : lost) {
          if (id == peer && text.find(why) != std::string::npos) return true;
        }
        return false;
      });
    });
  }
};

}  // namespace

TEST_CASE("duplicates are dropped, gaps are told and passed") {
  Scene scene;
  RawPeer raw(scene.endpoint);
  const PeerId id = raw.greet();
  raw.send(wire::Refuse{"two"}, 2, id);
  raw.send(wire::Refuse{"two again"}, 2, id);
  raw.send(wire::Refuse{"six"}, 6, id);
  raw.send(wire::Refuse{"four, late"}, 4, id);
  raw.send(wire::Refuse{"seven"}, 7, id);
  CHECK(eventually(
      [&] { return scene.server.run([&](Server&) { return scene.heard.size() == 3; }); }));
  scene.server.run([&](Server& s) {
    CHECK(scene.heard == std::vector<std::string>{"two", "six", "seven"});
    CHECK(scene.gaps == std::vector<std::uint64_t>{3});
    CHECK(s.counters().duplicates == 2);
    CHECK(s.counters().gaps == 3);
  });
}

TEST_CASE("a repeated hello is answered and makes no second peer") {
  Scene scene;
  RawPeer raw(scene.endpoint);
  const PeerId id = raw.greet();
  CHECK(raw.greet() == id);
  CHECK(scene.server.run([](Server& s) { return s.peers(); }) == 2);
}

TEST_CASE("another incarnation under the same routing id is fenced until it says hello") {
  Scene scene;
  RawPeer raw(scene.endpoint);
  const PeerId id = raw.greet();
  raw.incarnation = 78;
  raw.send(wire::Refuse{"from the dead"}, 2, id);
  CHECK(eventually([&] { return scene.counters().fenced == 1; }));
  const PeerId next = raw.greet();
  CHECK(next != id);
  CHECK(scene.is_lost(id, "replaced by a new incarnation"));
  raw.incarnation = 77;
  raw.send(wire::Refuse{"from the dead"}, 3, id);
  CHECK(eventually([&] { return scene.counters().fenced == 2; }));
  raw.incarnation = 78;
  raw.send(wire::Refuse{"alive, under a wrong id"}, 2, id);
  CHECK(eventually([&] { return scene.counters().fenced == 3; }));
  CHECK(scene.server.run([&](Server&) { return scene.heard.empty(); }));
  CHECK(scene.good_is_well());
}

TEST_CASE("who never said hello is told so and not heard") {
  Scene scene;
  RawPeer raw(scene.endpoint);
  raw.send(wire::Refuse{"psst"}, 1, 12);
  CHECK(raw.receive<wire::Goodbye>().reason == "say hello first");
  CHECK(scene.counters().strangers == 1);
  CHECK(scene.server.run([&](Server&) { return scene.heard.empty(); }));
}

TEST_CASE("garbage costs its sender the link and nobody else anything") {
  Scene scene;
  RawPeer raw(scene.endpoint);
  const PeerId id = raw.greet();
  std::string why = "broke the protocol";
  SUBCASE("not a message") {
    raw.send_bytes("GET / HTTP/1.1");
  }
  SUBCASE("nothing at all") {
    raw.send_bytes("");
  }
  SUBCASE("a payload that is cut") {
    std::string frame = wire::encode_frame({}, wire::Refuse{"whole"});
    frame.resize(frame.size() - 1);
    raw.send_bytes(frame);
  }
  SUBCASE("a payload that its handler cannot read") {
    raw.send(wire::Heartbeat{1ull << 63}, 2, id);
    raw.send(HugeLength{}, 3, id);
  }
  SUBCASE("many frames") {
    for (int i = 0; i < 1000; ++i)
      raw.socket.send(zmq::str_buffer("x"), zmq::send_flags::sndmore);
    raw.socket.send(zmq::str_buffer("x"));
    why = "several frames";
  }
  CHECK(scene.is_lost(id, why));
  CHECK(scene.counters().malformed >= 1);
  CHECK(scene.good_is_well());
}

TEST_CASE("a frame beyond the limit is cut off by ZeroMQ itself") {
  Scene scene;
  RawPeer raw(scene.endpoint);
  raw.greet();
  raw.send_bytes(std::string(wire::kMaxFrame + 1, 'x'));
  CHECK(scene.good_is_well());
  CHECK(scene.counters().malformed == 0);
}

TEST_CASE("a storm of random frames from strangers disturbs nobody") {
  Scene scene;
  RawPeer raw(scene.endpoint);
  std::mt19937_64 random(4);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes(random() % 120, '\0');
    for (char& byte : bytes)
      byte = static_cast<char>(random());
    if (i % 2 && bytes.size() >= 8) bytes.replace(0, 6, std::string("TRUP\1\0", 6));
    raw.send_bytes(bytes);
  }
  CHECK(eventually([&] { return scene.counters().malformed >= 4000; }));
  CHECK(scene.server.run([](Server& s) { return s.peers(); }) == 1);
  CHECK(scene.good_is_well());
}

TEST_CASE("a peer that does not read is given up, not waited for") {
  Event<std::string> lost;
  IpcFolder folder;
  Loop here;
  auto options = server_at(folder.endpoint("control"));
  options.socket.high_water_mark = 10;
  options.socket.max_queued_messages = 100;
  On<Server> server(here, options);
  server.run([&](Server& s) { s.on_lost([&](PeerId, const Loss& loss) { lost.set(loss.why); }); });
  RawPeer raw(folder.endpoint("control"));
  const PeerId id = raw.greet();
  const std::string text(100'000, 'x');
  const int sent = server.run([&](Server& s) {
    int count = 0;
    while (count < 100'000 && s.send(id, wire::Refuse{text}))
      ++count;
    return count;
  });
  CHECK(sent >= 100);
  CHECK(sent < 5000);
  CHECK(lost.wait().find("does not read") != std::string::npos);
}

}  // namespace troupe::control::testing
