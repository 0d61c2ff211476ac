#include "tests/control/harness.h"
#include "tests/support/doctest.h"

namespace troupe::control::testing {
namespace {

struct Outcome {
  bool ok = false;
  wire::Failure failure;
  std::string text;
};

ReplyHandler into(Event<Outcome>& event) {
  return [&event](const Reply& reply) {
    Outcome outcome;
    outcome.ok = reply.ok();
    if (reply) {
      outcome.text = reply.as<wire::Pong>().data;
    } else {
      outcome.failure = reply.failure();
    }
    event.set(std::move(outcome));
  };
}

/// A server and a peer in loops of their own, welcomed.
struct Pair {
  IpcFolder folder;
  Loop here, there;
  On<Server> server{here, server_at(folder.endpoint("control"))};
  On<Connection> peer{there, peer_at(folder.endpoint("control"))};
  PeerId id = welcome(peer);
};

}  // namespace

TEST_CASE("requests are answered in both directions") {
  Event<Outcome> down, up, by_program;
  Pair pair;
  pair.server.run([&](Server& s) { s.request(pair.id, wire::Ping{"down"}, 60s, into(down)); });
  pair.peer.run([&](Connection& c) { c.request(wire::Ping{"up"}, 60s, into(up)); });
  CHECK(down.wait().text == "down");
  CHECK(up.wait().text == "up");
  pair.server.run([&](Server& s) {
    s.on_message([&](PeerId peer, const wire::Header& header, std::span<const std::byte> payload) {
      CHECK(header.is_request());
      s.reply(peer, header, wire::Pong{wire::decode<wire::Refuse>(payload).reason + " to you"});
    });
  });
  pair.peer.run([&](Connection& c) { c.request(wire::Refuse{"hello"}, 60s, into(by_program)); });
  CHECK(by_program.wait().text == "hello to you");
}

TEST_CASE("a failure is an answer") {
  Event<Outcome> outcome;
  Pair pair;
  pair.peer.run([&](Connection& c) {
    c.on_message([&](const wire::Header& header, std::span<const std::byte>) {
      c.reply(header, wire::Failure{wire::FailureCode::not_found, "no such thing"});
    });
  });
  pair.server.run([&](Server& s) { s.request(pair.id, wire::Refuse{}, 60s, into(outcome)); });
  CHECK(outcome.wait().failure == wire::Failure{wire::FailureCode::not_found, "no such thing"});
}

TEST_CASE("silence ends at the deadline, and a late answer changes nothing") {
  wire::Header asked;
  Event<int> arrived;
  Event<Outcome> outcome, next;
  Pair pair;
  pair.peer.run([&](Connection& c) {
    c.on_message([&](const wire::Header& header, std::span<const std::byte>) {
      asked = header;
      arrived.set(1);
    });
  });
  const auto began = Clock::now();
  pair.server.run([&](Server& s) { s.request(pair.id, wire::Refuse{}, 100ms, into(outcome)); });
  arrived.wait();
  const Outcome result = outcome.wait();
  CHECK_FALSE(result.ok);
  CHECK(result.failure.code == wire::FailureCode::timeout);
  CHECK(result.failure.what.find("actor 0") != std::string::npos);
  CHECK(result.failure.what.find("within 0.1 s") != std::string::npos);
  CHECK(Clock::now() - began >= 100ms);
  pair.peer.run([&](Connection& c) { c.reply(asked, wire::Pong{"late"}); });
  pair.server.run([&](Server& s) { s.request(pair.id, wire::Ping{"next"}, 60s, into(next)); });
  CHECK(next.wait().text == "next");
  CHECK(outcome.times() == 1);
}

TEST_CASE("requests fail when the peer goes, and to nobody at once") {
  Event<Outcome> first, second;
  Pair pair;
  pair.server.run([&](Server& s) {
    s.request(pair.id, wire::Refuse{}, 60s, into(first));
    const auto called = std::make_shared<bool>(false);
    s.request(999, wire::Refuse{}, 60s, [&second, called](const Reply& reply) {
      *called = true;
      second.set({false, reply.failure(), {}});
    });
    CHECK_FALSE(*called);
  });
  CHECK(second.wait().failure.code == wire::FailureCode::lost);
  CHECK_FALSE(first.happened());
  pair.peer.reset();
  CHECK(first.wait().failure.code == wire::FailureCode::lost);
}

TEST_CASE("closing calls every open request once") {
  Event<Outcome> here, there;
  Pair pair;
  pair.server.run([&](Server& s) { s.request(pair.id, wire::Refuse{}, 60s, into(here)); });
  pair.peer.run([&](Connection& c) { c.request(wire::Refuse{}, 60s, into(there)); });
  pair.server.run([&](Server& s) { s.close(); });
  CHECK(here.wait().failure.code == wire::FailureCode::lost);
  CHECK(there.wait().failure.code == wire::FailureCode::lost);
  CHECK(here.times() == 1);
}

TEST_CASE("a handler may end its own endpoint") {
  Event<int> done;
  Pair pair;
  pair.server.run([&](Server& s) {
    s.request(pair.id, wire::Ping{}, 60s, [&](const Reply&) {
      s.close();
      done.set(1);
    });
    s.request(pair.id, wire::Refuse{}, 60s, [](const Reply&) {});
  });
  CHECK(done.wait() == 1);
}

TEST_CASE("nine thousand requests in a pipeline are all answered") {
  std::atomic<int> right{0}, wrong{0};
  Pair pair;
  pair.server.run([&](Server& s) {
    for (int i = 0; i < 9000; ++i) {
      s.request(pair.id, wire::Ping{std::to_string(i)}, 60s, [&, i](const Reply& reply) {
        ++(reply && reply.as<wire::Pong>().data == std::to_string(i) ? right : wrong);
      });
    }
  });
  CHECK(eventually([&] { return right + wrong == 9000; }));
  CHECK(wrong == 0);
}

TEST_CASE("a message too large to send is the sender's error") {
  Event<Outcome> big;
  Pair pair;
  pair.server.run([&](Server& s) {
    CHECK_THROWS_AS(s.send(pair.id, wire::Ping{std::string(wire::kMaxPayload, 'x')}),
                    wire::WireError);
    CHECK(s.peers() == 1);
  });
  const std::string text(wire::kMaxPayload - 4, 'x');
  pair.server.run([&](Server& s) { s.request(pair.id, wire::Ping{text}, 60s, into(big)); });
  CHECK(big.wait().text == text);
}

}  // namespace troupe::control::testing
