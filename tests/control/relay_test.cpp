#include "transport/control/relay.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "transport/control/mux.h"
#include "transport/control/server_impl.h"
#include "transport/wire/client_messages.h"

namespace troupe::control::testing {
namespace {

/// A host that has joined: its link, and a relay for its actors.
struct RelayingHost {
  RelayingHost(Loop& loop, const std::string& server, const std::string& own,
               RelayOptions relays = {})
      : link(loop, options(server)) {
    id = welcome(link);
    relays.endpoint = own;
    link.run([&](Connection& c) {
      relay = std::make_unique<Relay>(loop.io, relays,
                                      [&c](const wire::MuxFrames& carried) { c.send(carried); });
      c.on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
        if (relay && header.kind == wire::Kind::mux_frames)
          relay->take(wire::decode<wire::MuxFrames>(payload));
      });
    });
  }
  ~RelayingHost() {
    link.run([this](Connection&) { relay.reset(); });
  }
  static ConnectionOptions options(const std::string& server) {
    auto options = peer_at(server, "node2");
    options.hello.role = PeerRole::node;
    return options;
  }
  std::size_t links() {
    return link.run([this](Connection&) { return relay->links(); });
  }

  On<Connection> link;
  std::unique_ptr<Relay> relay;
  PeerId id = 0;
};

/// Events of a server's peers; on the server's loop.
struct Heard {
  std::vector<std::string> lost;             // "name: why", in order
  std::map<std::string, std::string> texts;  // of failures that were sent as messages, by name
  std::map<PeerId, std::string> names;

  void listen(Server& s) {
    s.on_connect([this](const PeerInfo& info) -> std::optional<std::string> {
      names[info.id] = info.hello.name;
      return std::nullopt;
    });
    s.on_message([this](PeerId peer, const wire::Header& header, std::span<const std::byte> bytes) {
      if (header.kind == wire::Kind::error)
        texts[names[peer]] += wire::decode<wire::Failure>(bytes).what;
    });
    s.on_lost(
        [this](PeerId peer, const Loss& loss) { lost.push_back(names[peer] + ": " + loss.why); });
  }
};

wire::Failure text_of(std::string what) {
  return {wire::FailureCode::none, std::move(what)};
}

}  // namespace

TEST_CASE("frames that are carried come out as they went in, long ones in pieces") {
  MuxWriter out;
  const std::string longest(wire::kMaxFrame, 'x');
  const std::vector<std::pair<std::uint32_t, std::string>> frames = {
      {1, "one"},
      {2, longest},
      {1, ""},
      {3, std::string(700'000, 'a')},
      {2, std::string(700'000, 'b')}};
  for (const auto& [slot, frame] : frames)
    out.add(slot, frame);
  CHECK(out.bytes() > 2'400'000);
  MuxReader in;
  std::vector<std::pair<std::uint32_t, std::string>> arrived;
  const auto messages = out.take();
  CHECK(messages.size() > 2);
  for (const auto& message : messages) {
    CHECK(wire::encode(message).size() <= wire::kMaxPayload);
    for (auto entry : wire::decode<wire::MuxFrames>(wire::as_bytes(wire::encode(message))).frames) {
      const auto slot = entry.slot;
      if (auto frame = in.take(std::move(entry))) arrived.emplace_back(slot, std::move(*frame));
    }
  }
  CHECK(arrived == frames);
  CHECK(out.empty());
  CHECK(out.bytes() == 0);
}

TEST_CASE("pieces that do not belong together are refused") {
  const auto piece = [](std::uint32_t slot, bool more, std::string bytes) {
    wire::MuxFrame entry;
    entry.slot = slot;
    entry.more = more;
    entry.bytes = std::move(bytes);
    return entry;
  };
  MuxReader another;
  CHECK_FALSE(another.take(piece(1, true, "a")));
  CHECK_THROWS_WITH_AS(another.take(piece(2, false, "b")),
                       "[mux] a frame of slot 1 ends in its midst: slot 2", wire::WireError);
  MuxReader empty;
  CHECK_THROWS_AS(empty.take(piece(1, true, "")), wire::WireError);
  MuxReader endless;
  CHECK_FALSE(endless.take(piece(1, true, std::string(wire::kMaxPayload, 'a'))));
  CHECK_THROWS_AS(endless.take(piece(1, true, "1234567890123456789012345678901234567890123456789")),
                  wire::WireError);
}

TEST_CASE("a relay's processes are peers of the server, over one link") {
  const IpcFolder folder, own;
  Loop here, there, actors;
  Heard heard;
  On<Server> server(here, server_at(folder.endpoint("control")));
  server.run([&](Server& s) { heard.listen(s); });
  RelayingHost host(there, folder.endpoint("control"), own.endpoint("relay"));
  std::vector<std::unique_ptr<On<Connection>>> peers;
  std::vector<PeerId> ids;
  for (int i = 0; i < 8; ++i) {
    peers.push_back(std::make_unique<On<Connection>>(
        actors, peer_at(own.endpoint("relay"), "actor " + std::to_string(i))));
    ids.push_back(welcome(*peers.back()));
  }
  CHECK(server.run([](Server& s) { return s.peers(); }) == 9);
  CHECK(host.links() == 8);

  // Requests and messages, the largest ones too, in both directions and in order.
  const std::string large(wire::kMaxPayload - 100, 'p');
  for (std::size_t i = 0; i < peers.size(); ++i) {
    Event<std::string> answer;
    server.run([&](Server& s) {
      s.request(ids[i], wire::Ping{large}, 60s, [&](const Reply& reply) {
        answer.set(reply.ok() ? reply.as<wire::Pong>().data : reply.failure().what);
      });
    });
    CHECK(answer.wait() == large);
    peers[i]->run([&](Connection& c) {
      for (int n = 0; n < 100; ++n)
        CHECK(c.send(text_of(std::to_string(n) + ",")));
    });
  }
  std::string all;
  for (int n = 0; n < 100; ++n)
    all += std::to_string(n) + ",";
  CHECK(eventually([&] {
    return server.run([&](Server&) {
      for (int i = 0; i < 8; ++i)
        if (heard.texts["actor " + std::to_string(i)] != all) return false;
      return true;
    });
  }));
  // Eight links, but few messages: what comes within a pause goes together.
  const auto before = server.run([](Server& s) { return s.counters().messages_received; });
  for (auto& peer : peers)
    peer->run([](Connection& c) {
      for (int n = 0; n < 200; ++n)
        c.send(text_of("x"));
    });
  CHECK(eventually([&] {
    return server.run([&](Server&) { return heard.texts["actor 7"].size() == all.size() + 200; });
  }));
  CHECK(server.run([](Server& s) { return s.counters().messages_received; }) - before < 800);

  // One leaves in order, one vanishes: the others stay.
  peers[0]->run([](Connection& c) { c.close("enough"); });
  peers[1].reset();
  CHECK(eventually([&] { return server.run([&](Server&) { return heard.lost.size(); }) == 2; }));
  CHECK(server.run([](Server& s) { return s.peers(); }) == 7);
  CHECK(eventually([&] { return host.links() == 6; }));
  server.run([&](Server&) {
    REQUIRE(heard.lost.size() == 2);
    std::ranges::sort(heard.lost);
    CHECK(heard.lost[0] == "actor 0: said goodbye: enough");
    CHECK(heard.lost[1] == "actor 1: disconnected");
  });
  // The server ends one's link.
  Event<std::string> ended;
  peers[2]->run([&](Connection& c) { c.on_lost([&](const Loss& loss) { ended.set(loss.why); }); });
  server.run([&](Server& s) { s.drop(ids[2], "no more"); });
  CHECK(ended.wait().ends_with("ended the link: no more"));
  CHECK(eventually([&] { return host.links() == 5; }));
}

TEST_CASE("a host that is lost takes the links that it carries along, after its own") {
  const IpcFolder folder, own;
  Loop here, actors;
  Heard heard;
  On<Server> server(here, server_at(folder.endpoint("control")));
  server.run([&](Server& s) { heard.listen(s); });
  auto there = std::make_unique<Loop>();
  auto host =
      std::make_unique<RelayingHost>(*there, folder.endpoint("control"), own.endpoint("relay"));
  On<Connection> first(actors, peer_at(own.endpoint("relay"), "actor 0"));
  On<Connection> second(actors, peer_at(own.endpoint("relay"), "actor 1"));
  const auto id = welcome(first);
  welcome(second);
  Event<std::string> answer;
  server.run([&](Server& s) {
    s.request(id, wire::GetStatus{}, 60s,
              [&](const Reply& reply) { answer.set(reply.ok() ? "" : reply.failure().what); });
  });
  host->link.reset();  // without a word
  CHECK(eventually([&] { return server.run([&](Server&) { return heard.lost.size(); }) == 3; }));
  CHECK(server.run([](Server& s) { return s.peers(); }) == 0);
  CHECK(answer.wait().starts_with("lost actor 0"));
  server.run([&](Server&) {
    REQUIRE(heard.lost.size() == 3);
    CHECK(heard.lost[0] == "node2: disconnected");
    CHECK(heard.lost[1].ends_with("its host's link is lost: disconnected"));
    CHECK(heard.lost[2].ends_with("its host's link is lost: disconnected"));
  });
}

TEST_CASE("a connection that takes a carried link's routing id for its own is heard by nobody") {
  const IpcFolder folder, own;
  Loop here, there, actors;
  Heard heard;
  On<Server> server(here, server_at(folder.endpoint("control")));
  server.run([&](Server& s) { heard.listen(s); });
  RelayingHost host(there, folder.endpoint("control"), own.endpoint("relay"));
  On<Connection> actor(actors, peer_at(own.endpoint("relay"), "actor"));
  const auto id = welcome(actor);
  const auto strangers = [&] {
    return server.run([](Server& s) { return s.counters().strangers; });
  };
  // That of the actor, and one of a host that is not there.
  std::uint64_t before = strangers();
  for (const PeerId carrier : {host.id, host.id + 100}) {
    RawPeer thief(folder.endpoint("control"), mux_routing({carrier, 1}));
    thief.send_bytes("nonsense");
    thief.send(wire::Hello{PeerRole::actor, "thief", "host", 1, "raw", {}}, 1);
    CHECK(eventually([&] { return strangers() == before + 2; }));
    before += 2;
  }
  Event<bool> answered;
  server.run([&](Server& s) {
    CHECK(heard.lost.empty());
    s.request(id, wire::Ping{"?"}, 60s, [&](const Reply& reply) { answered.set(reply.ok()); });
  });
  CHECK(answered.wait());
}

TEST_CASE("only a host's link carries, and only actors' links") {
  const IpcFolder folder;
  Loop here;
  On<Server> server(here, server_at(folder.endpoint("control")));
  const auto hello_of = [](PeerRole role) {
    wire::Header header;
    header.incarnation = 5;
    header.sequence = 1;
    wire::MuxFrames carried;
    auto& entry = carried.frames.emplace_back();
    entry.slot = 1;
    entry.bytes = wire::encode_frame(header, wire::Hello{role, "one", "host", 1, "raw", {}});
    return carried;
  };
  // Of an actor it is a message as any other.
  RawPeer actor(folder.endpoint("control"), "raw-actor");
  actor.incarnation = 70;
  const auto actor_id = actor.greet();
  actor.send(hello_of(PeerRole::actor), 2, actor_id);
  RawPeer node(folder.endpoint("control"), "raw-node");
  node.send(wire::Hello{PeerRole::node, "node2", "host", 1, "raw", {}}, 1);
  const auto node_id = node.receive<wire::Welcome>().peer;
  CHECK(server.run([](Server& s) { return s.peers(); }) == 2);
  node.send(hello_of(PeerRole::node), 2, node_id);
  const auto refused = node.receive<wire::MuxFrames>();
  REQUIRE(refused.frames.size() == 1);
  const auto frame = wire::as_bytes(refused.frames[0].bytes);
  CHECK(wire::decode<wire::Refuse>(wire::payload_of(frame)).reason ==
        "a host's link carries its actors' only");
  node.send(hello_of(PeerRole::actor), 3, node_id);
  CHECK(eventually([&] { return server.run([](Server& s) { return s.peers(); }) == 3; }));
  // What makes no sense ends the link that carries, and what it carried.
  wire::MuxFrames senseless;
  senseless.frames.resize(2);
  senseless.frames[0].more = true;
  senseless.frames[0].bytes = "a";
  senseless.frames[1].slot = 9;
  senseless.frames[1].bytes = "b";
  node.send(senseless, 4, node_id);
  CHECK(eventually([&] { return server.run([](Server& s) { return s.peers(); }) == 1; }));
}

TEST_CASE("before its hello a carried link says nothing that anybody hears") {
  const IpcFolder folder, own;
  Loop here, there;
  Heard heard;
  int messages = 0;
  On<Server> server(here, server_at(folder.endpoint("control")));
  server.run([&](Server& s) {
    heard.listen(s);
    s.on_message([&](PeerId, const wire::Header&, std::span<const std::byte>) { ++messages; });
  });
  const auto strangers = [&] {
    return server.run([](Server& s) { return s.counters().strangers; });
  };
  SUBCASE("a host that hands it on is told so") {
    RawPeer node(folder.endpoint("control"), "raw-node");
    node.send(wire::Hello{PeerRole::node, "node2", "host", 1, "raw", {}}, 1);
    const auto id = node.receive<wire::Welcome>().peer;
    wire::Header header;
    header.incarnation = 5;
    header.sequence = 1;
    const auto refuses = [&](const std::string& frame, std::uint64_t sequence) {
      wire::MuxFrames carried;
      carried.frames.resize(1);
      carried.frames[0].slot = 7;
      carried.frames[0].bytes = frame;
      node.send(carried, sequence, id);
      const auto answer = node.receive<wire::MuxFrames>();
      REQUIRE(answer.frames.size() == 1);
      CHECK(answer.frames[0].slot == 7);
      return wire::kind_of(answer.frames[0].bytes);
    };
    CHECK(refuses(wire::encode_frame(header, text_of("early")), 2) == wire::Kind::goodbye);
    CHECK(strangers() == 1);
    // Nor is a hello that makes no sense one: its place is free again.
    auto hello = wire::encode_frame(header, wire::Hello{PeerRole::actor, "a", "b", 1, "raw", {}});
    hello.resize(hello.size() - 1);
    CHECK(refuses(hello, 3) == wire::Kind::refuse);
    CHECK(server.run([](Server& s) { return s.peers(); }) == 1);
  }
  SUBCASE("a relay does not even hand it on") {
    RelayingHost host(there, folder.endpoint("control"), own.endpoint("relay"));
    RawPeer early(own.endpoint("relay"), "early");
    early.send(text_of("early"), 1);
    early.send(wire::Hello{PeerRole::actor, "one", "host", 1, "raw", {}}, 1);
    early.receive<wire::Welcome>();
    CHECK(strangers() == 0);
    // A hello that the server cannot read keeps no place at the relay.
    RawPeer senseless(own.endpoint("relay"), "senseless");
    senseless.incarnation = 78;
    wire::Header header;
    header.incarnation = 78;
    header.sequence = 1;
    auto hello = wire::encode_frame(header, wire::Hello{PeerRole::actor, "a", "b", 1, "raw", {}});
    hello.resize(hello.size() - 1);
    senseless.send_bytes(hello);
    senseless.receive<wire::Refuse>();
    CHECK(host.links() == 1);
  }
  server.run([&](Server&) { CHECK(messages == 0); });
}

TEST_CASE("of all that a relay's processes do not read the one goes that is owed most") {
  const IpcFolder folder, own;
  Loop here, there;
  Heard heard;
  On<Server> server(here, server_at(folder.endpoint("control")));
  server.run([&](Server& s) { heard.listen(s); });
  RelayOptions relays;
  relays.socket.high_water_mark = 4;
  relays.max_queued_bytes_of_all = 8u << 20;
  RelayingHost host(there, folder.endpoint("control"), own.endpoint("relay"), relays);
  const auto greet = [](RawPeer& peer, const std::string& name) {
    peer.socket.set(zmq::sockopt::rcvhwm, 1);
    peer.send(wire::Hello{PeerRole::actor, name, "host", 1, "raw", {}}, 1);
    return peer.receive<wire::Welcome>().peer;
  };
  RawPeer slow(own.endpoint("relay"), "slow");
  RawPeer slower(own.endpoint("relay"), "slower");
  slower.incarnation = 78;
  const auto first = greet(slow, "slow");
  const auto second = greet(slower, "slower");
  server.run([&](Server& s) {
    const std::string text(500'000, 'x');
    for (int i = 0; i < 8; ++i)
      s.send(first, text_of(text));
    for (int i = 0; i < 40; ++i)
      s.send(second, text_of(text));
  });
  CHECK(eventually([&] { return server.run([&](Server&) { return !heard.lost.empty(); }); }));
  server.run([&](Server& s) {
    CHECK(heard.lost == std::vector<std::string>{"slower: disconnected"});
    CHECK(s.info(first).has_value());
  });
  CHECK(host.links() == 1);
}

TEST_CASE("what waits for a host's links has one bound, and its host goes that does not read") {
  const IpcFolder folder, own;
  Loop here, there, actors;
  Heard heard;
  auto options = server_at(folder.endpoint("control"));
  options.socket.max_queued_bytes = 4u << 20;
  On<Server> server(here, options);
  server.run([&](Server& s) { heard.listen(s); });
  RelayingHost host(there, folder.endpoint("control"), own.endpoint("relay"));
  std::vector<std::unique_ptr<On<Connection>>> peers;
  std::vector<PeerId> ids;
  for (int i = 0; i < 8; ++i) {
    peers.push_back(std::make_unique<On<Connection>>(
        actors, peer_at(own.endpoint("relay"), "actor " + std::to_string(i))));
    ids.push_back(welcome(*peers.back()));
  }
  // No link alone is owed too much.
  server.run([&](Server& s) {
    for (const auto id : ids)
      CHECK(s.send(id, text_of(std::string(700'000, 'x'))));
  });
  CHECK(eventually([&] { return server.run([&](Server&) { return heard.lost.size(); }) == 9; }));
  server.run([&](Server& s) {
    REQUIRE(heard.lost.size() == 9);
    CHECK(heard.lost[0].starts_with("node2: does not read: the links that it carries are owed "));
    CHECK(s.peers() == 0);
  });
}

}  // namespace troupe::control::testing
