#include <cstdint>

#include "transport/control/blob_channel.h"
#include "transport/control/zap.h"

#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "tests/support/wire.h"
#include "transport/wire/client_messages.h"

namespace troupe::control::testing {
namespace {

/// A folder of keys and a server that asks for them.
struct Guarded {
  Guarded() : keys(scratch.path() / "keys") {
    keys.make(false);
    guard = loop.run([&] {
      return Guard::open(loop.io, make_context(), keys.server(), AllowList(keys.clients_file()));
    });
    ServerOptions options = server_at("tcp://127.0.0.1:0");
    options.guard = guard;
    options.socket.context = guard->context();
    server.emplace(loop, options);
    endpoint = server->run([](Server& s) { return s.endpoint(); });
  }
  ~Guarded() {
    server.reset();
    loop.run([&] { guard.reset(); });
  }

  /// "welcome", or why not.
  std::string knock(const std::optional<ClientKeys>& own,
                    std::chrono::milliseconds deadline = 60s) {
    Loop mine;
    ConnectionOptions options = peer_at(endpoint);
    options.keys = own;
    options.welcome_deadline = deadline;
    On<Connection> connection(mine, options);
    Event<std::string> said;
    connection.run([&](Connection& c) {
      c.start([&](const wire::Welcome&) { said.set("welcome"); },
              [&](const wire::Failure& failure) { said.set(failure.what); });
    });
    return said.wait(deadline + 5s);
  }

  IpcFolder scratch;
  KeyFolder keys;
  Loop loop;
  std::shared_ptr<Guard> guard;
  std::optional<On<Server>> server;
  std::string endpoint;
};

}  // namespace

TEST_CASE("a client with the right keys is let in") {
  Guarded there;
  CHECK(there.knock(there.keys.client()) == "welcome");
  CHECK(there.loop.run([&] { return there.guard->admitted(); }) == 1);
}

TEST_CASE("who has no keys or wrong ones is told at once, and what to do") {
  Guarded there;
  const auto begun = Clock::now();
  CHECK(troupe::testing::has(there.knock(std::nullopt),
                             "asks for keys: give --keys DIR or set TROUPE_KEYS"));

  ClientKeys unknown = there.keys.client();
  unknown.own = make_key_pair();
  CHECK(troupe::testing::has(there.knock(unknown), "does not allow the key"));
  CHECK(troupe::testing::has(there.knock(unknown), "troupe keys add"));

  ClientKeys elsewhere = there.keys.client();
  elsewhere.server_key = make_key_pair().public_key;
  CHECK(troupe::testing::has(there.knock(elsewhere), "has another key than"));
  CHECK(Clock::now() - begun < 60s);  // nobody waited for a deadline
  CHECK(there.server->run([](Server& s) { return s.peers(); }) == 0);
  CHECK(there.knock(there.keys.client()) == "welcome");
}

TEST_CASE("keys at a server that has none") {
  Loop loop;
  On<Server> server(loop, server_at("tcp://127.0.0.1:0"));
  Loop mine;
  ConnectionOptions options = peer_at(server.run([](Server& s) { return s.endpoint(); }));
  options.keys = ClientKeys{make_key_pair().public_key, make_key_pair(), "here"};
  On<Connection> connection(mine, options);
  Event<std::string> said;
  connection.run([&](Connection& c) {
    c.start([&](const wire::Welcome&) { said.set("welcome"); },
            [&](const wire::Failure& failure) { said.set(failure.what); });
  });
  CHECK(troupe::testing::has(said.wait(), "works without keys"));
}

TEST_CASE("taken off the list: links stay, new ones are refused") {
  Guarded there;
  Loop mine;
  ConnectionOptions options = peer_at(there.endpoint);
  options.keys = there.keys.client();
  On<Connection> connection(mine, options);
  welcome(connection);
  there.keys.remove("default");
  CHECK(troupe::testing::has(there.knock(there.keys.client()), "does not allow the key"));
  Event<bool> answered;
  connection.run([&](Connection& c) {
    c.request(wire::Ping{}, 60s, [&](const Reply& reply) { answered.set(reply.ok()); });
  });
  CHECK(answered.wait());
  there.keys.add({"again", there.keys.client().own.public_key});
  CHECK(there.knock(there.keys.client()) == "welcome");
}

TEST_CASE("keys that the guard itself gives out, over an environment variable") {
  Guarded there;
  const auto issued =
      there.loop.run([&] { return there.guard->issue("user actors", ClientRole::all_jobs); });
  const auto keys = client_keys_from(to_text(issued), "the environment");
  CHECK(there.knock(keys) == "welcome");
  ConnectionOptions options = peer_at(there.endpoint);
  options.keys = keys;
  Loop mine;
  On<Connection> connection(mine, options);
  const auto id = welcome(connection);
  const auto user = there.server->run([&](Server& s) { return s.user(id); });
  CHECK(user.name == "user actors");
  CHECK(user.role == ClientRole::all_jobs);
  CHECK_FALSE(is_client_name(user.name));
  CHECK_THROWS_AS(there.loop.run([&] { there.guard->issue("laptop", ClientRole::operate); }),
                  std::logic_error);
}

TEST_CASE("the blob channel asks for the same keys") {
  Guarded there;
  BlobStore held;
  ServerOptions options = server_at("tcp://127.0.0.1:0");
  options.guard = there.guard;
  options.socket.context = there.guard->context();
  On<BlobServer> blobs(there.loop, options, held);
  const auto id = held.add(std::string(1'000'000, 'x'));
  const auto endpoint = blobs.run([](BlobServer& s) { return s.endpoint(); });
  const auto fetch = [&](const std::optional<ClientKeys>& own) {
    Loop mine;
    BlobStore nothing;
    ConnectionOptions peer = peer_at(endpoint);
    peer.keys = own;
    On<BlobConnection> connection(mine, peer, nothing);
    Event<std::string> said;
    connection.run([&](BlobConnection& c) {
      c.fetch(id, 1'000'000, 60s, [&](BlobResult result) {
        said.set(result ? std::to_string(result.bytes->size()) : result.failure.what);
      });
      c.start();
    });
    return said.wait();
  };
  CHECK(fetch(there.keys.client()) == "1000000");
  CHECK(troupe::testing::has(fetch(std::nullopt), "asks for keys"));
}

TEST_CASE("strangers' bytes on a guarded port") {
  Guarded there;
  RawPeer raw(there.endpoint);
  raw.socket.set(zmq::sockopt::sndtimeo, 200);
  raw.socket.set(zmq::sockopt::rcvtimeo, 300);
  raw.send(wire::Hello{PeerRole::client, "raw", "host", 1, "raw", {}}, 1);
  CHECK_THROWS(raw.receive<wire::Welcome>());
  CHECK(there.server->run([](Server& s) { return s.counters().messages_received; }) == 0);
}

TEST_CASE("a stolen routing id: without a key on the list it is not heard, with one fenced") {
  Guarded there;
  std::vector<std::string> heard, told;
  there.server->run([&](Server& s) {
    s.on_message([&](PeerId, const wire::Header&, std::span<const std::byte> payload) {
      heard.push_back(wire::decode<wire::Refuse>(payload).reason);
    });
    there.guard->on_refused(
        [&](const std::string& who, const std::string& why) { told.push_back(who + ": " + why); });
  });
  const auto on_loop = [&](auto look) { return there.loop.run(look); };
  RawPeer owner(there.endpoint, "whose", there.keys.client());
  const PeerId id = owner.greet();
  const auto steal = [&](const ClientKeys& keys, const std::function<bool()>& noticed) {
    RawPeer thief(there.endpoint, "whose", keys);
    thief.incarnation = 78;
    thief.socket.set(zmq::sockopt::sndtimeo, 200);
    thief.send(wire::Refuse{"in its name"}, 2, id);
    CHECK(eventually(noticed));
  };
  ClientKeys keys = there.keys.client();
  keys.own = make_key_pair();
  steal(keys, [&] { return on_loop([&] { return !told.empty(); }); });
  CHECK(troupe::testing::has(told.at(0), "127.0.0.1 with the key " + keys.own.public_key));
  CHECK(troupe::testing::has(told.at(0), "the list of clients does not have this key"));
  owner.send(wire::Refuse{"mine"}, 2, id);
  CHECK(eventually([&] { return on_loop([&] { return heard.size() == 1; }); }));

  there.keys.add({"thief", keys.own.public_key});
  steal(keys,
        [&] { return there.server->run([](Server& s) { return s.counters().fenced >= 1; }); });
  CHECK(on_loop([&] { return heard; }) == std::vector<std::string>{"mine"});
  on_loop([&] { there.guard->on_refused({}); });
}

TEST_CASE("bytes that a wire with keys says twice are heard once") {
  Guarded there;
  std::vector<std::uint64_t> heard;
  there.server->run([&](Server& s) {
    s.on_message([&](PeerId, const wire::Header&, std::span<const std::byte> payload) {
      heard.push_back(wire::decode<wire::CancelJob>(payload).job);
    });
  });
  troupe::testing::Wire wire(parse_endpoint(there.endpoint).port);
  Loop mine;
  ConnectionOptions options = peer_at(wire.endpoint());
  options.keys = there.keys.client();
  On<Connection> connection(mine, options);
  welcome(connection);
  wire.replay(SIZE_MAX);
  std::uint64_t said = 0;
  CHECK(eventually([&] {
    connection.run([&](Connection& c) { c.send(wire::CancelJob{++said}); });
    return wire.struck() >= 1;
  }));
  CHECK(there.knock(there.keys.client()) == "welcome");
  there.server->run([&](Server& s) {
    for (std::size_t i = 1; i < heard.size(); ++i)
      CHECK(heard[i] > heard[i - 1]);
    CHECK(s.counters().duplicates == 0);  // they do not come as far as that
  });
}

TEST_CASE("who is turned away is told once in a while, and counted") {
  std::vector<std::string> told;
  Refusals refusals([&](const std::string& line) { told.push_back(line); }, 10s);
  const auto begin = Clock::now();
  for (int i = 0; i < 1000; ++i)
    refusals.add("a peer", "bad\nkey", begin + i * 1ms);
  REQUIRE(told.size() == 1);
  CHECK(told[0] == "turned away a peer: bad?key");
  refusals.add("another", "no token", begin + 11s);
  REQUIRE(told.size() == 2);
  CHECK(told[1] == "turned away another: no token (and 999 others since the last such line)");
  CHECK(refusals.count() == 1001);
  // PendingConnections may say a lot, and anything.
  refusals.add(std::string(200, 'a') + "b", std::string(1 << 20, '\xff'), begin + 22s);
  REQUIRE(told.size() == 3);
  CHECK(told[2] ==
        "turned away " + std::string(200, 'a') + "...: " + std::string(200, '?') + "...");
  refusals.add(std::string("\x1b[2J\x7f\0~ ", 8), std::string(200, 'c'), begin + 33s);
  CHECK(told.back() == "turned away ?[2J??~ : " + std::string(200, 'c'));
}

TEST_CASE("beyond loopback with keys, not without, however the address is written") {
  Loop loop;
  const auto error_of = [&](const std::string& endpoint, std::shared_ptr<Guard> guard) {
    return loop.run([&]() -> std::string {
      try {
        ServerOptions options = server_at(endpoint);
        options.guard = guard;
        if (guard) options.socket.context = guard->context();
        Server server(loop.io, options);
        return "no error";
      } catch (const std::runtime_error& error) {
        return error.what();
      }
    });
  };
  for (const char* address : {"0.0.0.0", "*", "[::]", "lo", "127.0.0.1;0.0.0.0", "127.example",
                              "[::ffff:0.0.0.0]", "127.1", "0x7f000001"}) {
    CAPTURE(address);
    CHECK(troupe::testing::has(error_of("tcp://" + std::string(address) + ":0", nullptr),
                               "troupe keys"));
  }
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  auto guard = loop.run([&] {
    return Guard::open(loop.io, make_context(), keys.server(), AllowList(keys.clients_file()));
  });
  CHECK(error_of("tcp://0.0.0.0:0", guard) == "no error");
  loop.run([&] { guard.reset(); });
}

TEST_CASE("with a user's own keys: who shows none, or others, is told as whose it may be") {
  Guarded there;
  auto own = there.keys.client();
  own.own_users = true;
  CHECK(there.knock(own) == "welcome");
  const IpcFolder elsewhere;
  const KeyFolder others(elsewhere.path() / "keys");
  others.make(false);
  own = others.client();
  own.own_users = true;
  CHECK(
      troupe::testing::has(there.knock(own), "asks for keys: give --keys DIR or set TROUPE_KEYS"));
  CHECK(troupe::testing::has(there.knock(own), "else it is another user's"));

  Loop loop;
  On<Server> bare(loop, server_at("tcp://127.0.0.1:0"));
  auto options = peer_at(bare.run([](Server& s) { return s.endpoint(); }));
  options.keys = own;
  Loop mine;
  On<Connection> connection(mine, options);
  Event<std::string> said;
  connection.run([&](Connection& c) {
    c.start([&](const auto&) { said.set("welcome"); },
            [&](const wire::Failure& failure) { said.set(failure.what); });
  });
  CHECK(troupe::testing::has(said.wait(), "does not know this user's own keys"));
  CHECK(bare.run([](Server& s) { return s.counters().messages_received; }) == 0);
}

TEST_CASE("a server knows each peer's name and role by its key") {
  Guarded there;
  const auto alice = make_key_pair();
  there.keys.add({"alice", alice.public_key, ClientRole::own_jobs});
  ConnectionOptions options = peer_at(there.endpoint);
  options.keys = there.keys.client();
  Loop mine;
  On<Connection> first(mine, options);
  const auto operating = welcome(first);
  options.keys->own = alice;
  On<Connection> second(mine, options);
  const auto own_jobs = welcome(second);
  there.server->run([&](Server& s) {
    CHECK(s.user(operating).name == "default");
    CHECK(s.user(operating).role == ClientRole::operate);
    CHECK(s.user(own_jobs).name == "alice");
    CHECK(s.user(own_jobs).role == ClientRole::own_jobs);
    CHECK(s.user(999).role == ClientRole::own_jobs);
  });
  for (const auto role : {ClientRole::own_jobs, ClientRole::all_jobs, ClientRole::operate}) {
    const auto user = user_of(user_id({"the cluster's actors", role}));
    CHECK(user.name == "the cluster's actors");
    CHECK(user.role == role);
  }
  CHECK(user_of("").role == ClientRole::own_jobs);
  CHECK(user_of("king alice").role == ClientRole::own_jobs);
}

}  // namespace troupe::control::testing
