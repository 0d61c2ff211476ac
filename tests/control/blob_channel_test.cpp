#include "transport/control/blob_channel.h"

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
                 std::chrono::milliseconds deadline = 10s) {
    server.run([&](BlobServer& s) {
      s.fetch(incarnation, id, bytes, deadline, [&](BlobResult r) { result.set(std::move(r)); });
    });
  }
  void pull_there(Event<BlobResult>& result, BlobId id, std::optional<std::uint64_t> bytes,
                  std::chrono::milliseconds deadline = 10s) {
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

TEST_CASE("a holder that vanishes mid-way fails the fetch") {
  Event<BlobResult> result;
  Scene scene;
  scene.start();
  const BlobId id = scene.held_there.add(noise(64u << 20));
  scene.pull_here(result, id, 64u << 20, 60s);
  REQUIRE(eventually([&] {
    return scene.server.run([](BlobServer& s) { return s.counters().bytes_received > (1u << 20); });
  }));
  scene.peer.reset();
  const auto failure = result.wait().failure;
  CHECK(failure.code == wire::FailureCode::lost);
}

TEST_CASE("a blob that is removed mid-way fails the fetch") {
  Event<BlobResult> result;
  Scene scene;
  scene.start();
  const BlobId id = scene.held_there.add(noise(64u << 20));
  scene.pull_here(result, id, 64u << 20, 60s);
  REQUIRE(eventually([&] {
    return scene.server.run([](BlobServer& s) { return s.counters().bytes_received > 0; });
  }));
  scene.held_there.remove(id);
  const auto outcome = result.wait(30s);
  CHECK(outcome.failure.code == wire::FailureCode::not_found);
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
  zmq::message_t frame;
  for (;;) {
    REQUIRE(raw.socket.recv(frame));
    const std::span<const std::byte> bytes{frame.data<std::byte>(), frame.size()};
    const wire::Header header = wire::decode_header(bytes);
    if (header.kind != wire::Kind::blob_request) continue;
    wire::Header answer;
    answer.flags = wire::kFlagReply;
    answer.correlation = header.correlation;
    answer.incarnation = raw.incarnation;
    answer.sender = id;
    answer.sequence = 2;
    raw.send_bytes(wire::encode_frame(answer, chunk));
    break;
  }
  const auto outcome = result.wait();
  CHECK_FALSE(outcome.ok());
  CHECK((outcome.failure.code == wire::FailureCode::protocol ||
         outcome.failure.code == wire::FailureCode::bad_request));
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

}  // namespace troupe::control::testing
