// An actor's door for callers, without the actor: what it lets in.
#include <algorithm>
#include <vector>

#include "actors/user/call_server.h"
#include "tests/support/doctest.h"
#include "tests/support/patience.h"
#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Door {
  explicit Door(std::uint64_t waiting = 1u << 30, std::uint64_t waiting_of_all = 1u << 30)
      : most(waiting), most_of_all(waiting_of_all) {}

  std::uint64_t most;
  std::uint64_t most_of_all;
  boost::asio::io_context io{1};
  control::IpcFolder folder;
  control::BlobStore blobs;
  std::vector<std::uint64_t> delivered;
  std::vector<std::string> arguments;
  runtime::CallServer server{io,
                             {.endpoint = folder.endpoint("calls"),
                              .blob_endpoint = folder.endpoint("blobs"),
                              .ticket = "ticket",
                              .context = nullptr,
                              .guard = nullptr,
                              .waiting_bytes = most,
                              .waiting_bytes_of_all = most_of_all},
                             blobs,
                             nullptr,
                             [this](std::vector<runtime::ReadyCall> calls) {
                               for (const auto& call : calls) {
                                 delivered.push_back(call.id);
                                 arguments.push_back(call.arguments);
                               }
                             }};

  bool until(const std::function<bool()>& holds) {
    const auto end = control::Clock::now() + testing::kPatience;
    while (!holds() && control::Clock::now() < end)
      io.run_one_for(20ms);
    return holds();
  }
  std::unique_ptr<control::Connection> caller(std::uint64_t incarnation) {
    control::ConnectionOptions options;
    options.endpoint = server.endpoint();
    options.incarnation = incarnation;
    options.welcome_deadline = control::Milliseconds(60'000);
    options.hello.role = PeerRole::caller;
    options.hello.attributes["ticket"] = "ticket";
    auto connection = std::make_unique<control::Connection>(io, options);
    connection->start([](const auto&) {}, [](const wire::Failure& why) { FAIL(why.what); });
    REQUIRE(until([&] { return connection->connected(); }));
    return connection;
  }
};

wire::ActorCalls calls_of(std::vector<std::uint64_t> ids) {
  wire::ActorCalls message;
  for (const auto id : ids) {
    wire::ActorCall call;
    call.id = id;
    call.method = "add";
    call.deadline_ms = 60'000;
    message.calls.push_back(std::move(call));
  }
  return message;
}

}  // namespace

TEST_CASE("a call that comes twice on a link runs once; another caller's of the same number runs") {
  Door door;
  const auto first = door.caller(5);
  for (int i = 0; i < 2; ++i)
    first->send(calls_of({1, 2}));
  first->send(calls_of({2, 3}));
  const auto second = door.caller(6);
  second->send(calls_of({1}));
  second->send(calls_of({1, 9}));
  REQUIRE(
      door.until([&] { return std::count(door.delivered.begin(), door.delivered.end(), 9) > 0; }));
  CHECK(door.delivered == std::vector<std::uint64_t>{1, 2, 3, 1, 9});
}

TEST_CASE("calls that wait are bounded: of a caller, and of all together") {
  Door door(1000, 1400);  // a call of no arguments counts as 259 bytes
  std::vector<std::string> said;
  const auto listens = [&](control::Connection& caller) {
    caller.on_message([&](const wire::Header&, std::span<const std::byte> payload) {
      for (const auto& result : wire::decode<wire::CallResults>(payload).results)
        said.push_back(std::to_string(result.id) + " " + result.bytes);
    });
  };
  const auto first = door.caller(5);
  const auto second = door.caller(6);
  listens(*first);
  listens(*second);
  first->send(calls_of({1, 2, 3, 4}));
  REQUIRE(door.until([&] { return said.size() == 1; }));
  CHECK(said.back() ==
        "4 too much waits for the actor already: 777 bytes of this caller's calls, 777 in all");
  second->send(calls_of({1, 2, 3}));
  REQUIRE(door.until([&] { return said.size() == 2; }));
  CHECK(said.back() ==
        "3 too much waits for the actor already: 518 bytes of this caller's calls, 1295 in all");
  // An answer makes room, and so does a caller's end.
  door.server.answer({{2, {1, wire::CallEnd::value, "", 0, 0}}});
  first->send(calls_of({5}));
  REQUIRE(door.until([&] { return door.delivered.size() == 6; }));
  second->close();
  REQUIRE(door.until([&] { return door.server.callers() == 1; }));
  first->send(calls_of({6}));
  REQUIRE(door.until([&] { return said.size() == 4; }));
  CHECK(said.back().starts_with("6 too much waits for the actor already: 777 bytes of this"));
  auto alone = calls_of({1});
  alone.calls[0].arguments = std::string(5000, 'x');
  first->close();
  REQUIRE(door.until([&] { return door.server.callers() == 0; }));
  const auto third = door.caller(7);
  listens(*third);
  third->send(alone);
  CHECK(door.until([&] { return door.delivered.size() == 7; }));
}

TEST_CASE("arguments come from the caller alone, not from who takes its number") {
  Door door;
  const auto first = door.caller(5);
  const auto blob_link = [&](control::BlobStore& store, std::uint64_t incarnation,
                             const std::string& secret) {
    control::ConnectionOptions options;
    options.endpoint = door.server.blob_endpoint();
    options.incarnation = incarnation;
    options.hello.role = PeerRole::caller;
    options.hello.attributes["ticket"] = "ticket";
    options.hello.secret = secret;
    return std::make_unique<control::BlobConnection>(door.io, options, store);
  };
  const auto said = [&](control::BlobConnection& link) {
    std::string said;
    link.start([&] { said = "welcome"; },
               [&](const wire::Failure& failure) { said = failure.what; });
    door.until([&] { return !said.empty(); });
    return said;
  };
  control::BlobStore forged, own;
  // Who has the ticket may fetch, and as no caller is fetched from.
  const auto fetcher = blob_link(forged, 5, "");
  CHECK(said(*fetcher) == "welcome");
  const auto second = door.caller(6);
  CHECK(said(*blob_link(forged, 5, second->secret())).find("without the secret") !=
        std::string::npos);
  CHECK(said(*blob_link(forged, 5, "guess")).find("without the secret") != std::string::npos);
  auto message = calls_of({1});
  message.calls.front().parts.push_back({0, "", "", "", own.add(std::string("true")), 4});
  first->send(message);
  const auto link = blob_link(own, 5, first->secret());
  CHECK(said(*link) == "welcome");
  REQUIRE(door.until([&] { return !door.delivered.empty(); }));
  CHECK(door.arguments == std::vector<std::string>{"true"});
  // Who shows the secret is the caller: the newcomer takes the place of a link that broke.
  CHECK(said(*blob_link(forged, 5, first->secret())) == "welcome");
}
