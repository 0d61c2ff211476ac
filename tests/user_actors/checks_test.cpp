// How plugins are looked at, with a program of the tests' own in the place of troupe-host: what
// hangs, what writes nonsense, hosts that are done sooner or are drained meanwhile, start orders
// without an answer. No sockets; requests are answered by the test.
#include <algorithm>
#include <csignal>
#include <functional>
#include <vector>

#include "controller/app/host_orders.h"
#include "controller/supervision/hosts.h"
#include "controller/user_actors/user_actor_service.h"
#include "tests/support/doctest.h"
#include "tests/support/no_stages.h"
#include "tests/support/patience.h"
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
  /// Returns the options of a host called b that has joined.
  cluster::HostOrders::Options orders(const std::string& body) {
    cluster::HostOrders::Options options;
    options.check.host_program = program(body);
    options.processes.host_program = options.check.host_program;
    options.processes.control_endpoint = "ipc:///nowhere/control.sock";
    return options;
  }
  user::UserActorService::Options room(const std::string& body) {
    user::UserActorService::Options options;
    options.plugins = {"lib.so"};
    options.host = "here";
    options.cores = 1;
    options.check.host_program = program(body);
    return options;
  }
  bool eventually(const std::function<bool()>& holds) {
    const auto until = control::Clock::now() + kPatience;
    while (!holds() && control::Clock::now() < until) {
      io.restart();
      io.run_for(5ms);
    }
    return holds();
  }
};

const wire::ProcessOwner kUserActor{PeerRole::user_actor, 3};

/// Time that a check may take where it hangs for good.
constexpr std::chrono::milliseconds kSoon{300};

const cluster::HostOrders::Tools kNoController{.controller = [] { return nullptr; },
                                               .refuse = [](const std::string&) {},
                                               .on_exit = {},
                                               .keys = {}};

template <class M>
void tell(cluster::HostOrders& orders, const M& message) {
  const auto bytes = wire::encode(message);
  wire::Header header;
  header.kind = M::kKind;
  CHECK(orders.on_message(header, wire::as_bytes(bytes), false));
}

wire::StartProcess start_of(std::uint64_t incarnation, const std::string& plugin) {
  wire::StartProcess order{.owner = kUserActor, .incarnation = incarnation};
  order.user.plugin = plugin;
  return order;
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
  options.check.deadline = kSoon;
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
  options.on_checked = [&] { ++exits; };
  user::UserActorService room(bench.io, bench.wings, options);
  int checked = 0;
  room.check_plugins([&](std::optional<std::string>) { ++checked; });
  CHECK(room.running() == 1);
  room.stop("the cluster is stopping");
  CHECK(bench.eventually([&] { return room.running() == 0 && exits > 0; }));
  CHECK(checked == 1);
}

TEST_CASE("a host on its way out does not wait for a plugin that hangs") {
  Bench bench;
  auto options = bench.orders(kHangs);
  options.any_plugin = true;
  cluster::HostOrders orders(bench.io, options, kNoController);
  tell(orders, wire::CheckPlugins{{"lib.so", "other.so"}});
  CHECK(orders.running() == 1);
  orders.end_checks();
  CHECK(bench.eventually([&] { return orders.running() == 0; }));
}

TEST_CASE("a host loads what its own starter has named, and no path that the controller sends") {
  Bench bench;
  const auto ordered = [](cluster::HostOrders& orders, const auto& order) {
    tell(orders, order);
    return orders.running();
  };
  const auto start = start_of(100, "/of/the/controller/lib.so");
  const wire::CheckPlugins check{{start.user.plugin}};
  auto options = bench.orders(kHangs);
  cluster::HostOrders closed(bench.io, options, kNoController);
  CHECK(ordered(closed, check) == 0);
  CHECK(ordered(closed, start) == 0);
  // Whatever role the order speaks of.
  auto posing = start;
  posing.owner.role = PeerRole::client;
  CHECK(ordered(closed, posing) == 0);
  options.plugins = {"/own/lib.so"};
  cluster::HostOrders named(bench.io, options, kNoController);
  CHECK(ordered(named, check) == 1);
  CHECK(ordered(named, start) == 2);
  posing.user.plugin = "lib.so";
  CHECK(ordered(named, posing) == 2);
}

TEST_CASE("an order to start that comes twice starts one process; an old end ends no other one") {
  Bench bench;
  auto options = bench.orders(kHangs);
  options.any_plugin = true;
  cluster::HostOrders orders(bench.io, options, kNoController);
  const auto end = [&](std::uint64_t incarnation) {
    tell(orders, wire::SignalProcess{kUserActor, incarnation, SIGKILL});
  };
  tell(orders, start_of(100, "lib.so"));
  tell(orders, start_of(100, "lib.so"));
  CHECK(orders.running() == 1);
  // Its successor comes while it still ends.
  end(100);
  tell(orders, start_of(101, "lib.so"));
  CHECK(orders.running() == 2);
  end(100);
  CHECK(bench.eventually([&] { return orders.running() == 1; }));
  end(100);
  bench.io.run_for(20ms);
  CHECK(orders.running() == 1);
  end(101);
  end(101);
  CHECK(bench.eventually([&] { return orders.running() == 0; }));
}

TEST_CASE("what a plugin writes while it is opened is taken for nothing else") {
  Bench bench;
  user::PluginCheck check(
      bench.io, {.host_program = bench.program(
                     R"(printf 'troupe-file\tmine\ntroupe-class\tX\t\t99999999999999999999\t1\n')"
                     "\n" +
                     kGood)});
  std::optional<wire::PluginReport> report;
  check.describe("lib.so", [&](wire::PluginReport told) { report = std::move(told); });
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
  room.host_lost("b6");
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
    if (drained) room.host_lost("b8");
  }
}

TEST_CASE("a start order without an answer is taken back") {
  Bench bench;
  std::vector<std::string> ends;
  cluster::RemoteProcessHost processes(
      bench.wings, 5, "b", [](const auto&, std::uint64_t, std::uint32_t) {},
      [&](const auto&, std::uint64_t, const cluster::ExitCause& how) { ends.push_back(how.told); });
  processes.start(start_of(33, "lib.so"));
  REQUIRE(bench.wings.requests.size() == 1);
  bench.wings.requests[0].fail(wire::FailureCode::timeout);
  CHECK(ends == std::vector<std::string>{"not started on b: no"});
  const auto orders = bench.wings.told<wire::SignalProcess>();
  REQUIRE(orders.size() == 1);
  CHECK(orders[0].owner == kUserActor);
  CHECK(orders[0].incarnation == 33);
  CHECK(orders[0].signal == SIGKILL);
}

}  // namespace troupe::testing
