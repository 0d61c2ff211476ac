// An actor's door for callers, without the actor: what it lets in.
#include <algorithm>
#include <vector>

#include "actors/runtime/call_server.h"
#include "tests/support/doctest.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

struct Door {
  boost::asio::io_context io{1};
  control::IpcFolder folder;
  control::BlobStore blobs;
  std::vector<std::uint64_t> delivered;
  runtime::CallServer server{io,
                             {.endpoint = folder.endpoint("calls"),
                              .blob_endpoint = folder.endpoint("blobs"),
                              .ticket = "ticket",
                              .context = nullptr,
                              .guard = nullptr},
                             blobs,
                             nullptr,
                             [this](std::vector<runtime::ReadyCall> calls) {
                               for (const auto& call : calls)
                                 delivered.push_back(call.id);
                             }};

  bool until(const std::function<bool()>& holds) {
    const auto end = control::Clock::now() + 60s;
    while (!holds() && control::Clock::now() < end)
      io.run_one_for(20ms);
    return holds();
  }
  std::unique_ptr<control::Connection> caller(std::uint64_t incarnation) {
    control::ConnectionOptions options;
    options.endpoint = server.endpoint();
    options.incarnation = incarnation;
    options.welcome_deadline = control::Milliseconds(60'000);
    options.hello.role = "caller";
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
