#include "transport/control/blob_channel.h"

#include <array>
#include <deque>
#include <map>
#include <random>

#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "transport/wire/blob_messages.h"

namespace troupe::control::testing {
namespace {

std::string noise(std::size_t bytes) {
  std::mt19937_64 random(bytes);
  std::string text(bytes, '\0');
  for (char& byte : text)
    byte = static_cast<char>(random());
  return text;
}

/// Waits for a blob request and answers it.
template <class M>
void answer_next(RawPeer& raw, PeerId id, std::uint64_t sequence, const M& message) {
  for (;;) {
    zmq::message_t frame;
    REQUIRE(raw.socket.recv(frame));
    const wire::Header header = wire::decode_header({frame.data<std::byte>(), frame.size()});
    if (header.kind != wire::Kind::blob_request) continue;
    wire::Header answer;
    answer.flags = wire::kFlagReply;
    answer.correlation = header.correlation;
    answer.incarnation = raw.incarnation;
    answer.sender = id;
    answer.sequence = sequence;
    return raw.send_bytes(wire::encode_frame(answer, message));
  }
}

struct Scene {
  IpcFolder folder;
  std::string endpoint = folder.endpoint("blobs");
  Loop here, there;
  BlobStore held_here, held_there;
  On<BlobServer> server{here, server_at(endpoint), held_here};
  std::uint64_t incarnation = random_incarnation();
  On<BlobConnection> peer{there, options(), held_there};

  ConnectionOptions options() const {
    auto o = peer_at(endpoint);
    o.incarnation = incarnation;
    return o;
  }
  void start() {
    peer.run([](BlobConnection& c) { c.start(); });
  }
  void pull_here(Event<BlobResult>& result, BlobId id, std::optional<std::uint64_t> bytes,
                 std::chrono::milliseconds deadline = 60s) {
    server.run([&](BlobServer& s) {
      s.fetch(incarnation, id, bytes, deadline, [&](BlobResult r) { result.set(std::move(r)); });
    });
  }
  void pull_there(Event<BlobResult>& result, BlobId id, std::optional<std::uint64_t> bytes,
                  std::chrono::milliseconds deadline = 60s) {
    peer.run([&](BlobConnection& c) {
      c.fetch(id, bytes, deadline, [&](BlobResult r) { result.set(std::move(r)); });
    });
  }
};

}  // namespace

TEST_CASE("blobs of every size go both ways, with their length known or not") {
  Scene scene;
  scene.start();
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{kBlobChunk},
                                 std::size_t{kBlobChunk} + 1, std::size_t{5'000'000}}) {
    CAPTURE(size);
    const std::string bytes = noise(size);
    const BlobId here = scene.held_here.add(bytes);
    const BlobId there = scene.held_there.add(bytes);
    for (const auto known : {std::optional<std::uint64_t>(size), std::optional<std::uint64_t>()}) {
      Event<BlobResult> up, down;
      scene.pull_here(up, there, known);
      scene.pull_there(down, here, known);
      const BlobResult from_there = up.wait(), from_here = down.wait();
      REQUIRE(from_there.ok());
      REQUIRE(from_here.ok());
      CHECK(*from_there.bytes == bytes);
      CHECK(*from_here.bytes == bytes);
    }
  }
}

TEST_CASE("what is not held, not as long, or too big is told") {
  Event<BlobResult> unknown, wrong, big;
  Scene scene;
  scene.start();
  scene.pull_here(unknown, 12345, std::nullopt);
  CHECK(unknown.wait().failure.code == wire::FailureCode::not_found);
  scene.pull_here(wrong, scene.held_there.add(noise(1000)), 999);
  const auto failure = wrong.wait().failure;
  CHECK(failure.code == wire::FailureCode::protocol);
  CHECK(failure.what.find("1000 bytes, expected 999") != std::string::npos);
  scene.pull_here(big, scene.held_there.add(noise(1000)), 1ull << 60);
  CHECK(big.wait().failure.code == wire::FailureCode::bad_request);
}

TEST_CASE("a fetch waits for its holder within the deadline") {
  Event<BlobResult> early, later;
  Scene scene;
  const BlobId id = scene.held_there.add(noise(100));
  scene.pull_here(early, id, 100, 100ms);
  CHECK(early.wait().failure.code == wire::FailureCode::timeout);
  scene.pull_here(later, id, 100);
  scene.start();
  CHECK(later.wait().ok());
}

TEST_CASE("a holder that vanishes or forgets mid-way fails the fetch") {
  Event<BlobResult> result;
  Scene scene;
  auto raw = std::make_unique<RawPeer>(scene.endpoint);
  const PeerId id = raw->greet();
  scene.incarnation = raw->incarnation;
  scene.pull_here(result, 5, std::nullopt, 60s);
  answer_next(*raw, id, 2, wire::BlobChunk{64u << 20, 1, 0, noise(kBlobChunk)});
  auto expected = wire::FailureCode::lost;
  SUBCASE("vanishes") {
    raw.reset();
  }
  SUBCASE("forgets") {
    expected = wire::FailureCode::not_found;
    answer_next(*raw, id, 3, wire::Failure{expected, "gone"});
  }
  CHECK(result.wait().failure.code == expected);
}

TEST_CASE("chunks beyond the limit, and of blobs removed meanwhile, are refused by the holder") {
  Scene scene;
  const BlobId id = scene.held_here.add(noise(1000));
  RawPeer raw(scene.endpoint);
  const PeerId peer = raw.greet();
  raw.send(wire::BlobRequest{id, 0, 10}, 2, peer, 1);
  CHECK(raw.receive<wire::BlobChunk>().data.size() == 10);
  raw.send(wire::BlobRequest{id, 0, kBlobChunk + 1}, 3, peer, 2);
  CHECK(raw.receive<wire::Failure>().code == wire::FailureCode::bad_request);
  scene.held_here.remove(id);
  raw.send(wire::BlobRequest{id, 10, 10}, 4, peer, 3);
  CHECK(raw.receive<wire::Failure>().code == wire::FailureCode::not_found);
}

TEST_CASE("a holder that lies is found out") {
  Event<BlobResult> result;
  Scene scene;
  RawPeer raw(scene.endpoint);
  const PeerId id = raw.greet();
  scene.incarnation = raw.incarnation;
  const std::string data = noise(10);
  wire::BlobChunk chunk{10, blob_checksum(data.data(), data.size()), 0, data};
  SUBCASE("checksum") {
    chunk.checksum ^= 1;
  }
  SUBCASE("length") {
    chunk.data.pop_back();
  }
  SUBCASE("place") {
    chunk.offset = 1;
  }
  SUBCASE("a claim of endless bytes") {
    chunk.total = ~0ull;
  }
  scene.pull_here(result, 5, std::nullopt);
  answer_next(raw, id, 2, chunk);
  const auto outcome = result.wait();
  CHECK_FALSE(outcome.ok());
  CHECK((outcome.failure.code == wire::FailureCode::protocol ||
         outcome.failure.code == wire::FailureCode::bad_request));
}

TEST_CASE("all fetches of a link together have its credits, and take turns") {
  std::array<Event<BlobResult>, 5> results;
  Scene scene;
  RawPeer raw(scene.endpoint);
  const PeerId peer = raw.greet();
  scene.incarnation = raw.incarnation;
  constexpr std::uint64_t kBytes = 100ull * kBlobChunk;
  for (std::uint64_t id = 1; id <= results.size(); ++id)
    scene.pull_here(results[id - 1], id, kBytes, 60s);
  std::map<std::uint64_t, int> asked;
  std::deque<wire::Header> open;
  // Until all that may come has come, and a while longer, in which nothing more may. Heartbeats
  // keep coming, so a quiet time is measured by hand.
  const auto listen_for = [&](std::size_t requests) {
    raw.socket.set(zmq::sockopt::rcvtimeo, 20);
    const auto give_up = Clock::now() + 60s;
    std::optional<Clock::time_point> until;
    while (Clock::now() < until.value_or(give_up)) {
      if (!until && open.size() >= requests) until = Clock::now() + 300ms;
      zmq::message_t frame;
      if (!raw.socket.recv(frame)) continue;
      const std::span<const std::byte> bytes{frame.data<std::byte>(), frame.size()};
      const auto header = wire::decode_header(bytes);
      if (header.kind != wire::Kind::blob_request) continue;
      open.push_back(header);
      ++asked[wire::decode<wire::BlobRequest>(wire::payload_of(bytes)).id];
    }
  };
  listen_for(8);
  CHECK(open.size() == 8);
  CHECK(asked[1] == 8);  // it was alone at first
  // What fails gives its credits back to the others.
  std::uint64_t sequence = 2;
  for (int i = 0; i < 8; ++i) {
    wire::Header answer;
    answer.flags = wire::kFlagReply;
    answer.correlation = open.front().correlation;
    answer.incarnation = raw.incarnation;
    answer.sender = peer;
    answer.sequence = sequence++;
    open.pop_front();
    raw.send_bytes(wire::encode_frame(answer, wire::Failure{wire::FailureCode::not_found, "gone"}));
  }
  CHECK(results[0].wait().failure.code == wire::FailureCode::not_found);
  listen_for(8);
  CHECK(open.size() == 8);
  CHECK(asked[1] == 8);
  for (std::uint64_t id = 2; id <= 5; ++id)
    CHECK(asked[id] == 2);
}

TEST_CASE("who is not admitted gets no blobs") {
  Scene scene;
  const BlobId id = scene.held_here.add("secret");
  scene.server.run([&](BlobServer& s) {
    s.admit([allowed = scene.incarnation](const PeerInfo& peer) -> BlobPass {
      if (peer.incarnation == allowed) return {};
      return {.refusal = "no control link"};
    });
  });
  RawPeer raw(scene.endpoint);
  raw.send(wire::Hello{PeerRole::client, "raw", "host", 1, "raw", {}}, 1);
  CHECK(raw.receive<wire::Refuse>().reason == "no control link");
  raw.send(wire::BlobRequest{id, 0, 6}, 2, 2, 1);
  CHECK(raw.receive<wire::Goodbye>().reason == "say hello first");
  Event<BlobResult> result;
  scene.start();
  scene.pull_there(result, id, 6);
  CHECK(*result.wait().bytes == "secret");
}

TEST_CASE("a silent holder ends at the deadline") {
  Event<BlobResult> result;
  Scene scene;
  RawPeer raw(scene.endpoint);
  raw.greet();
  scene.incarnation = raw.incarnation;
  scene.pull_here(result, 5, 10, 200ms);
  const auto outcome = result.wait();
  CHECK(outcome.failure.code == wire::FailureCode::timeout);
  CHECK(outcome.failure.what.find("not here within 200 ms") != std::string::npos);
}

TEST_CASE("nothing is fetched from who shows no secret, and who shows it takes over its old link") {
  Scene scene;
  scene.server.run([&](BlobServer& s) {
    s.admit([](const PeerInfo& peer) -> BlobPass {
      if (peer.hello.secret == "wrong") return {.refusal = "a wrong secret"};
      return {.fetches_only = peer.hello.secret.empty()};
    });
  });
  const auto comes = [&](On<BlobConnection>& connection) {
    Event<std::string> said;
    connection.run([&](BlobConnection& c) {
      c.start([&] { said.set("welcome"); },
              [&](const wire::Failure& failure) { said.set(failure.what); });
    });
    return said.wait();
  };
  const auto as = [&](const std::string& secret) {
    auto options = scene.options();  // the same process, by what it says
    options.hello.secret = secret;
    options.hello.name = "with \"" + secret + "\"";
    return options;
  };
  BlobStore forged, held;
  const BlobId here = scene.held_here.add("here"), there = held.add(std::string("true"));
  On<BlobConnection> wrong(scene.there, as("wrong"), forged);
  CHECK(comes(wrong).find("a wrong secret") != std::string::npos);
  // Before the holder has come, and after.
  On<BlobConnection> fetcher(scene.there, as(""), forged);
  CHECK(comes(fetcher) == "welcome");
  Event<BlobResult> fetched, pulled;
  fetcher.run([&](BlobConnection& c) {
    c.fetch(here, 4, 60s, [&](BlobResult r) { fetched.set(std::move(r)); });
  });
  CHECK(*fetched.wait().bytes == "here");
  CHECK_FALSE(scene.server.run([&](BlobServer& s) { return s.connected(scene.incarnation); }));
  scene.pull_here(pulled, there, 4);
  On<BlobConnection> holder(scene.there, as("right"), held);
  CHECK(comes(holder) == "welcome");
  CHECK(*pulled.wait().bytes == "true");
  On<BlobConnection> other_wrong(scene.there, as("wrong"), forged);
  CHECK(comes(other_wrong).find("a wrong secret") != std::string::npos);
  On<BlobConnection> other_fetcher(scene.there, as(""), forged);
  CHECK(comes(other_fetcher) == "welcome");
  Event<BlobResult> again;
  scene.pull_here(again, there, 4);
  CHECK(*again.wait().bytes == "true");
  // The old link stands as far as the server knows.
  BlobStore held_anew;
  const BlobId later = held_anew.add(std::string("later"));
  Event<std::string> replaced;
  holder.run(
      [&](BlobConnection& c) { c.on_lost([&](const Loss& loss) { replaced.set(loss.why); }); });
  On<BlobConnection> second(scene.there, as("right"), held_anew);
  CHECK(comes(second) == "welcome");
  CHECK(replaced.wait().find("the process has come anew") != std::string::npos);
  Event<BlobResult> of_second;
  scene.pull_here(of_second, later, 5);
  CHECK(*of_second.wait().bytes == "later");
  CHECK(scene.server.run([&](BlobServer& s) { return s.connected(scene.incarnation); }));
}

}  // namespace troupe::control::testing
