// How plugins are looked at, with a program of the tests' own in the place of troupe-host: what
// hangs, what writes nonsense, hosts that are done sooner or are drained meanwhile, start orders
// without an answer. No sockets; requests are answered by the test.
#include <algorithm>
#include <functional>
#include <vector>

#include "controller/user_actors/host_user_actors.h"
#include "controller/user_actors/user_actor_service.h"
#include "tests/support/doctest.h"
#include "tests/support/no_stages.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "transport/control/after.h"
#include "transport/wire/host_messages.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;
using control::PeerId;

const std::string kHangs = "exec sleep 600";
/// A plugin of one class, as --describe tells of it.
const std::string kGood = R"(printf 'troupe-file\t7\ntroupe-class\tC\t\t1\t0\ntroupe-end\n')";

struct Request {
  PeerId peer;
  std::string frame;
  control::ReplyHandler handler;

  template <class M>
  void answer(const M& message) const {
    const auto reply = wire::encode_frame({}, message);
    handler(control::Reply(wire::decode_header(wire::as_bytes(reply)),
                           wire::as_bytes(reply).subspan(wire::kHeaderSize)));
  }
  void fail(wire::FailureCode code) const { handler(control::Reply(wire::Failure{code, "no"})); }
};

class Wings final : public NoStages {
 public:
  explicit Wings(boost::asio::io_context& io) : io_(io) {}
  double now() const override { return 0; }
  std::uint64_t random() override { return ++last_; }
  void after(double seconds, std::function<void()> action) override {
    control::after(io_, std::chrono::duration<double>(seconds), std::move(action));
  }
  bool send_frame(PeerId, std::string frame) override {
    sent.push_back(std::move(frame));
    return true;
  }
  void request_frame(PeerId peer, std::string frame, control::Milliseconds,
                     control::ReplyHandler handler) override {
    requests.push_back({peer, std::move(frame), std::move(handler)});
  }
  void drop(PeerId, const std::string&) override {}

  /// Messages of that kind that went out without an answer being asked for.
  template <class M>
  std::vector<M> told() const {
    std::vector<M> all;
    for (const auto& frame : sent) {
      const auto bytes = wire::as_bytes(frame);
      if (wire::decode_header(bytes).kind == M::kKind)
        all.push_back(wire::decode<M>(bytes.subspan(wire::kHeaderSize)));
    }
    return all;
  }

  std::vector<Request> requests;
  std::vector<std::string> sent;

 private:
  boost::asio::io_context& io_;
  std::uint64_t last_ = 0;
};

/// A loop, and a program that stands for troupe-host.
struct Bench {
  boost::asio::io_context io;
  Scratch scratch;
  Wings wings{io};

  std::string program(const std::string& body) {
    const auto file = scratch.file("host", "#!/bin/sh\n" + body + "\n");
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }
  user::HostProcesses::Options processes(const std::string& body) {
    user::HostProcesses::Options options;
    options.host_program = program(body);
    options.control_endpoint = "ipc:///nowhere/control.sock";
    return options;
  }
  user::UserActorService::Options room(const std::string& body) {
    user::UserActorService::Options options;
    options.plugins = {"lib.so"};
    options.host = "here";
    options.cores = 1;
    options.processes = processes(body);
    return options;
  }
  bool eventually(const std::function<bool()>& holds) {
    const auto until = control::Clock::now() + 60s;
    while (!holds() && control::Clock::now() < until) {
      io.restart();
      io.run_for(5ms);
    }
    return holds();
  }
};

/// How long a check may take where it hangs for good.
constexpr std::chrono::milliseconds kSoon{300};

user::HostProcesses::OnExit nobody() {
  return [](std::uint64_t, std::uint64_t, const user::HostExit&) {};
}

control::PeerInfo agent(PeerId peer) {
  control::PeerInfo info;
  info.id = peer;
  info.hello.attributes = {{"cores", "2"}, {"gpus", ""}};
  return info;
}

wire::PluginsChecked same_plugin() {
  wire::PluginsChecked checked;
  checked.reports.push_back({"lib.so", 7, {}, ""});
  return checked;
}

const user::Host* host_in(user::UserActorService& room, const std::string& name) {
  const auto& hosts = room.actors().table().hosts();
  const auto found = std::ranges::find(hosts, name, &user::Host::name);
  return found == hosts.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("a plugin that hangs while it is opened is refused by name, and its check ends") {
  Bench bench;
  auto options = bench.room(kHangs);
  options.processes.describe_deadline = kSoon;
  user::UserActorService room(bench.io, bench.wings, options);
  std::optional<std::string> why;
  room.check_plugins([&](std::optional<std::string> refusal) { why = refusal; });
  REQUIRE(bench.eventually([&] { return why.has_value(); }));
  CHECK(*why == "[plugin] lib.so: was not opened within 300 ms");
  CHECK(bench.eventually([&] { return room.running() == 0; }));
}

TEST_CASE("a plugin that ends its process with 0 while it is looked at is refused by name") {
  // Before it has said anything, and in the midst of it.
  for (const std::string said : {"", R"(printf 'troupe-file\t7\ntroupe-class\tC\t\t1\t0\n'; )"}) {
    Bench bench;
    user::UserActorService room(bench.io, bench.wings, bench.room(said + "exit 0"));
    std::optional<std::optional<std::string>> told;
    room.check_plugins([&](std::optional<std::string> refusal) { told = std::move(refusal); });
    REQUIRE(bench.eventually([&] { return told.has_value(); }));
    CHECK(told->value_or("it was let in") ==
          "[plugin] lib.so: it ended its process, with exit code 0, while it was opened");
  }
}

TEST_CASE("a stop does not wait for a plugin that hangs") {
  Bench bench;
  auto options = bench.room(kHangs);
  options.plugins.push_back("other.so");
  int exits = 0;
  options.on_exit = [&] { ++exits; };
  user::UserActorService room(bench.io, bench.wings, options);
  int checked = 0;
  room.check_plugins([&](std::optional<std::string>) { ++checked; });
  CHECK(room.running() == 1);
  room.stop();
  CHECK(bench.eventually([&] { return room.running() == 0 && exits > 0; }));
  CHECK(checked == 1);
}

TEST_CASE("a host on its way out does not wait for a plugin that hangs") {
  Bench bench;
  user::HostUserActors guest(
      bench.io,
      {.host = "b", .plugins = {}, .any_plugin = true, .processes = bench.processes(kHangs)},
      {.controller = [] { return nullptr; }, .refuse = [](const std::string&) {}});
  const auto order = wire::encode(wire::CheckPlugins{{"lib.so", "other.so"}});
  wire::Header header;
  header.kind = wire::Kind::check_plugins;
  CHECK(guest.on_message(header, wire::as_bytes(order), false));
  CHECK(guest.running() == 1);
  guest.end_checks();
  CHECK(bench.eventually([&] { return guest.running() == 0; }));
}

TEST_CASE("a host loads what its own starter has named, and no path that the controller sends") {
  Bench bench;
  const auto ordered = [&](user::HostUserActors& guest, const auto& order) {
    const auto bytes = wire::encode(order);
    wire::Header header;
    header.kind = std::decay_t<decltype(order)>::kKind;
    CHECK(guest.on_message(header, wire::as_bytes(bytes), false));
    return guest.running();
  };
  wire::StartUserProcess start;
  start.id = 3;
  start.incarnation = 100;
  start.plugin = "/of/the/controller/lib.so";
  const wire::CheckPlugins check{{start.plugin}};
  const user::HostUserActors::Tools tools{.controller = [] { return nullptr; },
                                          .refuse = [](const std::string&) {}};
  user::HostUserActors closed(
      bench.io, {.host = "b", .plugins = {}, .processes = bench.processes(kHangs)}, tools);
  CHECK(ordered(closed, check) == 0);
  CHECK(ordered(closed, start) == 0);
  user::HostUserActors named(
      bench.io, {.host = "b", .plugins = {"/own/lib.so"}, .processes = bench.processes(kHangs)},
      tools);
  CHECK(ordered(named, check) == 1);
  CHECK(ordered(named, start) == 2);
}

TEST_CASE("an order to start that comes twice starts one process; an old end ends no other one") {
  Bench bench;
  user::HostUserActors guest(
      bench.io,
      {.host = "b", .plugins = {}, .any_plugin = true, .processes = bench.processes(kHangs)},
      {.controller = [] { return nullptr; }, .refuse = [](const std::string&) {}});
  const auto tell = [&](const auto& message) {
    const auto bytes = wire::encode(message);
    wire::Header header;
    header.kind = std::decay_t<decltype(message)>::kKind;
    CHECK(guest.on_message(header, wire::as_bytes(bytes), false));
  };
  const auto start = [](std::uint64_t incarnation) {
    wire::StartUserProcess order;
    order.id = 3;
    order.incarnation = incarnation;
    order.plugin = "lib.so";
    return order;
  };
  tell(start(100));
  tell(start(100));
  CHECK(guest.running() == 1);
  // Its successor comes while it still ends.
  tell(wire::EndUserProcess{3, 100});
  tell(start(101));
  CHECK(guest.running() == 2);
  tell(wire::EndUserProcess{3, 100});
  CHECK(bench.eventually([&] { return guest.running() == 1; }));
  tell(wire::EndUserProcess{3, 100});
  bench.io.run_for(20ms);
  CHECK(guest.running() == 1);
  tell(wire::EndUserProcess{3, 101});
  tell(wire::EndUserProcess{3, 101});
  CHECK(bench.eventually([&] { return guest.running() == 0; }));
}

TEST_CASE("what a plugin writes while it is opened is taken for nothing else") {
  Bench bench;
  user::HostProcesses processes(
      bench.io,
      bench.processes(R"(printf 'troupe-file\tmine\ntroupe-class\tX\t\t99999999999999999999\t1\n')"
                      "\n" +
                      kGood),
      nobody());
  std::optional<wire::PluginReport> report;
  processes.describe("lib.so", [&](wire::PluginReport told) { report = std::move(told); });
  REQUIRE(bench.eventually([&] { return report.has_value(); }));
  CHECK(report->failure == "");
  CHECK(report->contents == 7);
  REQUIRE(report->classes.classes.size() == 1);
  CHECK(report->classes.classes[0].name == "C");
}

TEST_CASE("a host that is done with its plugins before the controller lacks none") {
  Bench bench;
  user::UserActorService room(bench.io, bench.wings, bench.room(kGood));
  bool done = false;
  room.check_plugins([&](std::optional<std::string> why) { done = !why; });
  for (const PeerId peer : {5, 6, 7})
    room.host_joined("b" + std::to_string(peer), agent(peer));
  REQUIRE(bench.wings.requests.size() == 3);
  for (const auto& request : bench.wings.requests)
    request.answer(same_plugin());
  // One goes again meanwhile, one is drained.
  room.host_lost("b6", "cut off");
  room.drain_host("b7", false);
  CHECK(!host_in(room, "b5"));
  REQUIRE(bench.eventually([&] { return done; }));
  REQUIRE(host_in(room, "b5"));
  CHECK(host_in(room, "b5")->lacks.empty());
  CHECK(!host_in(room, "b5")->draining);
  CHECK(!host_in(room, "b6"));
  REQUIRE(host_in(room, "b7"));
  CHECK(host_in(room, "b7")->draining);

  // So is one that is drained while it still looks; when it has come back it is as new.
  for (const bool drained : {true, false}) {
    room.host_joined("b8", agent(drained ? 8 : 9));
    if (drained) room.drain_host("b8", true);
    bench.wings.requests.back().answer(same_plugin());
    REQUIRE(host_in(room, "b8"));
    CHECK(host_in(room, "b8")->draining == drained);
    if (drained) room.host_lost("b8", "it left");
  }
}

TEST_CASE("a start order without an answer is taken back") {
  Bench bench;
  user::HostProcesses own(bench.io, bench.processes(kGood), nobody());
  std::vector<std::string> ends;
  user::AllHosts hosts({.environment = bench.wings,
                        .own = own,
                        .own_host = "here",
                        .access = {},
                        .on_started = [](std::uint64_t, std::uint64_t, std::uint32_t) {},
                        .on_exit = [&](std::uint64_t, std::uint64_t,
                                       const user::HostExit& how) { ends.push_back(how.how); }});
  hosts.joined("b", 5);
  user::HostLaunch launch;
  launch.id = 3;
  launch.incarnation = 33;
  launch.host = "b";
  hosts.spawn(launch);
  REQUIRE(bench.wings.requests.size() == 1);
  bench.wings.requests[0].fail(wire::FailureCode::timeout);
  CHECK(ends == std::vector<std::string>{"not started on b: no"});
  const auto orders = bench.wings.told<wire::EndUserProcess>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].id == 3);
  CHECK(orders[0].incarnation == 33);
}

}  // namespace troupe::testing
