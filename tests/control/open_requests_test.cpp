#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "transport/wire/done.h"

// What a peer may have a server keep: requests that wait for their answers, and answers that wait
// for it to read.
namespace troupe::control::testing {
namespace {

struct RequestScene {
  std::vector<std::pair<PeerId, wire::Header>> asked;
  std::vector<std::string> lost;
  IpcFolder folder;
  Loop here, there;
  On<Server> server;

  explicit RequestScene(ServerOptions options)
      : server(here, (options.endpoint = folder.endpoint("control"), options)) {
    server.run([this](Server& s) {
      s.on_message([this](PeerId peer, const wire::Header& header, std::span<const std::byte>) {
        asked.emplace_back(peer, header);
      });
      s.on_lost([this](PeerId, const Loss& loss) { lost.push_back(loss.why); });
    });
  }
  ServerOptions static bounded(OpenRequests::Bounds one, OpenRequests::Bounds all) {
    auto options = server_at("");
    options.open_requests = one;
    options.open_requests_of_all = all;
    return options;
  }
  std::size_t count() {
    return server.run([this](Server&) { return asked.size(); });
  }
  void answer_one() {
    server.run([this](Server& s) {
      s.reply(asked.front().first, asked.front().second, wire::Done{});
      asked.erase(asked.begin());
    });
  }
};

void ask(On<Connection>& from, std::vector<std::string>& said, std::size_t bytes = 0) {
  from.run([&](Connection& c) {
    c.request(wire::Refuse{std::string(bytes, 'x')}, 60s,
              [&](const Reply& reply) { said.push_back(reply ? "done" : reply.failure().what); });
  });
}

}  // namespace

TEST_CASE("requests that are not answered are bounded in number, of a peer and in all") {
  RequestScene scene(RequestScene::bounded({.most = 3}, {.most = 5}));
  On<Connection> one(scene.there, peer_at(scene.folder.endpoint("control"), "one"));
  On<Connection> other(scene.there, peer_at(scene.folder.endpoint("control"), "other"));
  welcome(one);
  welcome(other);
  std::vector<std::string> said;
  const auto told = [&] { return scene.there.run([&] { return said.size(); }); };
  for (int i = 0; i < 4; ++i)
    ask(one, said);
  REQUIRE(eventually([&] { return told() == 1; }));
  CHECK(said.at(0) ==
        "[request] 3 requests of this peer with 12 bytes are not answered yet: try "
        "again later");
  for (int i = 0; i < 3; ++i)
    ask(other, said);
  REQUIRE(eventually([&] { return told() == 2; }));
  CHECK(said.at(1) ==
        "[request] 5 requests of all peers with 20 bytes are not answered yet: try "
        "again later");
  CHECK(scene.count() == 5);
  scene.answer_one();
  REQUIRE(eventually([&] { return told() == 3; }));
  CHECK(said.at(2) == "done");
  ask(one, said);
  CHECK(eventually([&] { return scene.count() == 5; }));
  // What a peer had asked goes with it.
  one.reset();
  REQUIRE(eventually([&] { return scene.server.run([](Server& s) { return s.peers(); }) == 1; }));
  ask(other, said);
  CHECK(eventually([&] { return scene.count() == 6; }));
}

TEST_CASE("850 requests of 0.9 MB that are never answered are kept within 16 MiB") {
  RequestScene scene(server_at(""));
  On<Connection> one(scene.there, peer_at(scene.folder.endpoint("control"), "one"));
  welcome(one);
  std::vector<std::string> said;
  for (std::size_t i = 0; i < 850; ++i) {
    ask(one, said, 900'000);
    // Not faster than it is read: what waits at the sender is the sender's.
    if (i % 17 != 16) continue;
    REQUIRE(eventually(
        [&] { return scene.count() + scene.there.run([&] { return said.size(); }) == i + 1; }));
  }
  CHECK(scene.count() == 18);
  CHECK(said.size() == 832);
}

TEST_CASE("a request that comes again under its number costs the link") {
  RequestScene scene(server_at(""));
  RawPeer raw(scene.folder.endpoint("control"));
  const auto id = raw.greet();
  raw.send(wire::Refuse{"?"}, 2, id, 7);
  raw.send(wire::Refuse{"?"}, 3, id, 7);
  REQUIRE(
      eventually([&] { return scene.server.run([&](Server&) { return !scene.lost.empty(); }); }));
  CHECK(scene.lost.front() ==
        "broke the protocol: [request] number 7 comes again before it was answered");
}

TEST_CASE("of all that is not read the peer goes that is owed most") {
  auto options = server_at("");
  options.socket.high_water_mark = 4;
  options.max_queued_bytes_of_all = 8u << 20;
  RequestScene scene(options);
  RawPeer slow(scene.folder.endpoint("control"), "slow");
  RawPeer slower(scene.folder.endpoint("control"), "slower");
  slower.incarnation = 78;
  for (auto* each : {&slow, &slower})
    each->socket.set(zmq::sockopt::rcvhwm, 1);
  const auto first = slow.greet();
  const auto second = slower.greet();
  scene.server.run([&](Server& s) {
    const std::string text(500'000, 'x');
    for (int i = 0; i < 8; ++i)
      s.send(first, wire::Refuse{text});
    CHECK(s.peers() == 2);
    for (int i = 0; i < 40 && s.send(second, wire::Refuse{text}); ++i) {
    }
    CHECK(s.peers() == 1);
    CHECK(s.info(first).has_value());
  });
  REQUIRE(
      eventually([&] { return scene.server.run([&](Server&) { return !scene.lost.empty(); }); }));
  CHECK(scene.lost.front().starts_with("does not read: of "));
}

}  // namespace troupe::control::testing
