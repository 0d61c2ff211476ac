// Users' actors on more than one host: agents of `troupe join` as processes of this machine, under
// other names, with keys on every link.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "tests/process/support/connect.h"
#include "tests/process/support/processes.h"
#include "tests/process/support/theatre.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"
#include "tests/user_actors/classes.h"
#include "transport/control/key_folder.h"
#include "troupe/actor.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

const std::string kPlugin = TROUPE_BINARY_DIR "/lib/libtroupe_test_plugin.so";

template <class T>
T value_of(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().code + ": " + result.error().what);
  return std::move(result.value());
}

/// A controller with one actor and a plugin, on tcp with keys, and hosts that join it.
class Cast {
 public:
  explicit Cast(const std::string& plugin = kPlugin) {
    control::KeyFolder(keys()).make(false);
    auto options = actors(1);
    options.listen = "tcp://127.0.0.1:0";
    options.keys = keys();
    options.plugins = {plugin};
    cluster_ = std::make_unique<cluster::Cluster>(options);
    cluster_->wait_ready(kReadyDeadline);
    client_ = std::make_unique<Client>(connect());
  }

  Client connect() const { return value_of(Client::connect(cluster_->endpoint(), 10s, keys())); }
  Client& client() { return *client_; }
  Actors users() { return client_->actors(); }
  std::string keys() const { return folder_ / "keys"; }
  std::string here() { return value_of(client_->status()).host; }

  /// Joins and returns when users' actors may live there, or may not for want of the plugin.
  Command& join(const std::string& name, const std::vector<std::string>& more = {}) {
    const auto command = start(name, more);
    REQUIRE(eventually(60s, [&] { return !why_not(name).empty() || may_live_on(name); }));
    return *command;
  }
  std::shared_ptr<Command> start(const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {
        "join",   "--connect", cluster_->endpoint(), "--keys", keys(), "--name", name,
        "--wait", "0",         "--actors",           "1"};
    words.insert(words.end(), more.begin(), more.end());
    fs::create_directory(folder_ / name);
    guests_.push_back(std::make_shared<Command>(words, folder_ / name));
    return guests_.back();
  }

  /// What the list of classes says of that host; "" = nothing.
  std::string why_not(const std::string& host) {
    for (const auto& each : value_of(users().classes())) {
      for (const auto& lack : each.lacking)
        if (lack.starts_with(host + ": ")) return lack;
    }
    return "";
  }
  UserActorInfo info(std::uint64_t id) {
    for (auto& each : value_of(users().list()))
      if (each.id == id) return each;
    throw std::runtime_error("no actor " + std::to_string(id));
  }
  template <class T>
  std::string host_of(const ActorHandle<T>& actor) {
    return info(actor.id()).host;
  }
  /// A probe on that host.
  ActorHandle<Probe> probe_on(const std::string& host, SpawnOptions options = {}) {
    // Spread out in a group of their own, actors go to one host after another.
    options.placement = "spread";
    options.group = "turn " + std::to_string(++turns_);
    std::vector<std::uint64_t> before;
    for (int i = 0; i < 8; ++i) {
      const auto counter =
          value_of(users().spawn<Counter>({.placement = "spread", .group = options.group}, 0));
      if (host_of(counter) != host) {
        before.push_back(counter.id());
        continue;
      }
      value_of(users().kill(counter.id()));
      auto probe = value_of(users().spawn<Probe>(options, "p"));
      for (const auto id : before)
        value_of(users().kill(id));
      REQUIRE(host_of(probe) == host);
      return probe;
    }
    throw std::runtime_error("no probe on " + host);
  }
  std::string failures() {
    std::string all;
    for (const auto& text : value_of(client_->status()).recent_failures)
      all += text + "\n";
    return all;
  }

 private:
  bool may_live_on(const std::string& host) {
    bool there = false;
    std::vector<std::uint64_t> tried;
    for (int i = 0; i < 4 && !there; ++i) {
      const auto probe =
          users().spawn<Counter>({.placement = "spread", .group = "joined " + host}, 0);
      if (!probe) return false;
      tried.push_back(probe.value().id());
      there = info(tried.back()).host == host;
    }
    for (const auto id : tried)
      value_of(users().kill(id));
    return there;
  }

  Scratch folder_;
  std::unique_ptr<cluster::Cluster> cluster_;
  std::unique_ptr<Client> client_;
  std::vector<std::shared_ptr<Command>> guests_;
  int turns_ = 0;
};

pid_t parent_of(pid_t pid) {
  const auto text = read_all("/proc/" + std::to_string(pid) + "/stat");
  const auto rest = text.substr(text.rfind(')') + 1);
  return static_cast<pid_t>(std::stol(rest.substr(3)));
}

}  // namespace

TEST_CASE("users' actors on three hosts: placed by rule, and tensors go round between them") {
  Cast cast;
  auto& beta = cast.join("beta");
  auto& gamma = cast.join("gamma");
  auto users = cast.users();

  std::vector<ActorHandle<Probe>> ring;
  std::set<std::string> hosts;
  for (int i = 0; i < 3; ++i) {
    ring.push_back(value_of(users.spawn<Probe>({.placement = "spread", .group = "ring"}, "r")));
    hosts.insert(cast.host_of(ring.back()));
  }
  CHECK(hosts == std::set<std::string>{cast.here(), "beta", "gamma"});
  for (const auto& member : ring) {
    const auto info = cast.info(member.id());
    const pid_t agent = info.host == "beta"    ? beta.pid()
                        : info.host == "gamma" ? gamma.pid()
                                               : getpid();
    CHECK(parent_of(static_cast<pid_t>(info.pid)) == agent);
  }
  // 400 kB, from actor to actor; then a small one the same way.
  for (const std::int64_t elements : {100'000, 10}) {
    auto tensor = ring[0].call<&Probe::array>(elements, 1.f);
    for (int lap = 0; lap < 2; ++lap) {
      for (auto& member : ring)
        tensor = member.call<&Probe::twice>(tensor);
    }
    CHECK(value_of(ring[1].call<&Probe::sum>(tensor).wait(30s)) == 64.0 * double(elements));
  }
  // Large arguments from here, large results to here.
  for (auto& member : ring) {
    CHECK(value_of(member.call<&Probe::blob>(3'000'000).wait(30s)).size() == 3'000'000);
    CHECK(value_of(member.call<&Probe::sum>(Array::of(std::vector<float>(500'000, 1.f), {500'000}))
                       .wait(30s)) == 500'000);
  }
  // Handles as arguments, actors that spawn and find actors, on whichever host.
  auto counter = value_of(users.spawn<Counter>({.name = "c"}, 0));
  std::int64_t sum = 0;
  for (auto& member : ring)
    CHECK(value_of(member.call<&Probe::call_other>(counter, 5).wait(10s)) == (sum += 5));
  for (auto& member : ring) {
    auto found = value_of(member.call<&Probe::find_counter>("c").wait(10s));
    CHECK(found.id() == counter.id());
    auto made = value_of(member.call<&Probe::spawn_counter>(7, false).wait(10s));
    CHECK(value_of(made.call<&Counter::value>().wait(10s)) == 7);
  }

  // Together: all on one host, and full when that is.
  const double cores = std::thread::hardware_concurrency();
  auto first = value_of(users.spawn<Counter>(
      {.resources = {.cores = cores / 2}, .placement = "together", .group = "t"}, 0));
  auto second = value_of(users.spawn<Counter>(
      {.resources = {.cores = cores / 2}, .placement = "together", .group = "t"}, 0));
  CHECK(cast.host_of(first) == cast.host_of(second));
  const auto third =
      users.spawn<Counter>({.resources = {.cores = 1}, .placement = "together", .group = "t"}, 0);
  REQUIRE(!third);
  CHECK(has(third.error().what, "its group is on " + cast.host_of(first)));

  // Cores are each host's own.
  auto large = value_of(users.spawn<Counter>({.resources = {.cores = cores}}, 0));
  auto larger = value_of(users.spawn<Counter>({.resources = {.cores = cores}}, 0));
  CHECK(cast.host_of(large) != cast.host_of(larger));
  const auto none = users.spawn<Counter>({.resources = {.cores = cores}}, 0);
  REQUIRE(!none);
  CHECK(none.error().code == "overloaded");
  for (const std::string host : {"beta has 0 of", "gamma has 0 of"})
    CHECK(has(none.error().what, host));

  // An actor that goes is told with its signal and its method, as on the controller's own host.
  auto victim = cast.probe_on("beta");
  std::promise<Death> death;
  value_of(victim.monitor([&](const Death& how) { death.set_value(how); }));
  const auto crash = victim.call<&Probe::crash>(SIGSEGV).wait(10s);
  CHECK(has(crash.error().what, "killed by signal 11 (SIGSEGV)"));
  CHECK(has(crash.error().what, "in crash: about to crash"));
  auto told = death.get_future();
  REQUIRE(told.wait_for(5s) == std::future_status::ready);
  CHECK(told.get().method == "crash");
  CHECK(!users.spawn<Fussy>({.placement = "spread", .group = "f"}, false));
  value_of(users.kill(cast.probe_on("gamma").id()));

  const auto hung =
      cast.probe_on("gamma", {.hang_after = 300ms}).call<&Probe::sleep>(30'000).wait(10s);
  REQUIRE(!hung);
  CHECK(has(hung.error().what, "has ended: hung in sleep for "));
}

TEST_CASE("an agent that stands still: its actors are not the cluster's any more, and end") {
  Cast cast;
  auto& beta = cast.join("beta");
  auto moved = cast.probe_on("beta", {.max_restarts = 1});
  const auto old = static_cast<pid_t>(cast.info(moved.id()).pid);
  auto under_way = moved.call<&Probe::sleep>(60'000);
  beta.signal(SIGSTOP);
  const auto fall = under_way.wait(30s);
  CHECK(fall.error().code == "restarting");
  CHECK(has(fall.error().what, "lost with its host beta: no sign of life for "));
  CHECK(value_of(moved.call<&Probe::restarts>().wait(20s)) == 1);
  CHECK(cast.host_of(moved) == cast.here());
  // The agent cannot end it; the controller tells it to go.
  CHECK(seconds_until_gone({old}, 5s) < 5);
  beta.signal(SIGCONT);
  CHECK(beta.wait(20s) == 1);
}

TEST_CASE("nobody calls an actor without the keys that the controller gives out") {
  Cast cast;
  cast.join("beta");
  auto probe = cast.probe_on("beta");
  // Its door is on tcp; find it among the sockets that its process listens on.
  const auto pid = cast.info(probe.id()).pid;
  std::set<int> ports;
  const auto table = read_all("/proc/" + std::to_string(pid) + "/net/tcp");
  std::set<std::string> inodes;
  for (const auto& entry : fs::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code error;
    const auto to = fs::read_symlink(entry.path(), error).string();
    if (to.starts_with("socket:[")) inodes.insert(to.substr(8, to.size() - 9));
  }
  std::istringstream lines(table);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream fields(line);
    std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
    if (words.size() < 10 || words[3] != "0A" || !inodes.contains(words[9])) continue;
    ports.insert(std::stoi(words[1].substr(words[1].find(':') + 1), nullptr, 16));
  }
  REQUIRE(ports.size() == 2);  // calls, and large values
  for (const int port : ports) {
    const auto at = "tcp://127.0.0.1:" + std::to_string(port);
    // Whoever has no keys, or those of the cluster's clients, does not come as far as the ticket.
    for (const auto& keys : {std::string(), cast.keys()}) {
      const auto client = Client::connect(at, 2s, keys);
      REQUIRE(!client);
      CAPTURE(client.error().what);
      CHECK(!has(client.error().what, "ticket"));
      CHECK(has(client.error().what, "key"));
    }
  }
  CHECK(value_of(probe.call<&Probe::name>().wait(5s)) == "p");
}

TEST_CASE("a host that dies takes its users' actors along; they begin anew elsewhere if they may") {
  Cast cast;
  auto& beta = cast.join("beta");
  cast.join("gamma");
  auto users = cast.users();
  auto mortal = cast.probe_on("beta", {.name = "mortal"});
  auto lasting = cast.probe_on("beta", {.name = "lasting", .max_restarts = 1});
  // A group that is together there, since there was no room on the others.
  const double cores = std::thread::hardware_concurrency();
  std::vector<std::uint64_t> fillers;
  for (int i = 0; i < 2; ++i)
    fillers.push_back(
        cast.probe_on(i ? "gamma" : cast.here(), {.resources = {.cores = cores}}).id());
  std::vector<ActorHandle<Counter>> group;
  for (int i = 0; i < 3; ++i) {
    group.push_back(value_of(users.spawn<Counter>(
        {.resources = {.cores = 0.1}, .placement = "together", .group = "g", .max_restarts = 1},
        i)));
    CHECK(cast.host_of(group.back()) == "beta");
  }
  for (const auto id : fillers)
    value_of(users.kill(id));
  auto elsewhere = cast.probe_on(cast.here());
  const auto pid = static_cast<pid_t>(cast.info(mortal.id()).pid);
  std::promise<Death> mortal_death, lasting_death;
  value_of(mortal.monitor([&](const Death& how) { mortal_death.set_value(how); }));
  value_of(lasting.monitor([&](const Death& how) { lasting_death.set_value(how); }));
  auto under_way = mortal.call<&Probe::sleep>(60'000);
  auto restarting = lasting.call<&Probe::sleep>(60'000);
  CHECK(value_of(elsewhere.call<&Probe::name>().wait(5s)) == "p");
  std::this_thread::sleep_for(200ms);

  const auto blow = std::chrono::steady_clock::now();
  beta.signal(SIGKILL);
  const auto fall = under_way.wait(20s);
  const std::chrono::duration<double> noticed = std::chrono::steady_clock::now() - blow;
  MESSAGE("noticed after " << noticed.count() << " s: " << fall.error().what);
  CHECK(noticed.count() < 5);
  CHECK(fall.error().code == "died");
  CHECK(has(fall.error().what, "lost with its host beta: "));
  CHECK(restarting.wait(10s).error().code == "restarting");
  auto told = mortal_death.get_future();
  REQUIRE(told.wait_for(5s) == std::future_status::ready);
  CHECK(told.get().cause.starts_with("lost with its host beta: "));
  auto told_lasting = lasting_death.get_future();
  REQUIRE(told_lasting.wait_for(5s) == std::future_status::ready);
  CHECK(told_lasting.get().restarting);
  // A new process on the host that is left, its constructor run again.
  CHECK(value_of(lasting.call<&Probe::restarts>().wait(20s)) == 1);
  CHECK(cast.host_of(lasting) != "beta");
  CHECK(value_of(users.get<Probe>("lasting")).id() == lasting.id());
  CHECK(seconds_until_gone({pid}, 5s) < 5);
  CHECK(value_of(elsewhere.call<&Probe::restarts>().wait(5s)) == 0);
  for (auto& member : group) {
    CHECK(member.call<&Counter::add>(0).wait(10s).ok());
    CHECK(cast.info(member.id()).restarts == 1);
    CHECK(cast.host_of(member) != "beta");
    CHECK(cast.host_of(member) == cast.host_of(group[0]));
  }

  // The host comes back and is used again.
  cast.join("beta");
  CHECK(value_of(cast.probe_on("beta").call<&Probe::restarts>().wait(10s)) == 0);
}

TEST_CASE("drain: no new users' actors; with --now they end, or begin anew elsewhere") {
  Cast cast;
  cast.join("beta");
  auto users = cast.users();
  auto staying = cast.probe_on("beta", {.name = "staying"});
  auto moving = cast.probe_on("beta", {.name = "moving", .max_restarts = -1});
  const auto note = value_of(cast.client().drain({"beta"}));
  CHECK(has(note, "users' actors on beta stay until the end: "));
  CHECK(has(note, "\"staying\""));
  for (int i = 0; i < 3; ++i) {
    const auto probe = value_of(users.spawn<Counter>({.placement = "spread", .group = "after"}, 0));
    CHECK(cast.host_of(probe) == cast.here());
  }
  CHECK(value_of(staying.call<&Probe::restarts>().wait(5s)) == 0);

  const auto now = value_of(cast.client().drain({"beta"}, true));
  CHECK(has(now, "users' actors on beta are ended: "));
  REQUIRE(eventually(10s, [&] { return cast.info(staying.id()).state == "dead"; }));
  CHECK(cast.info(staying.id()).cause == "its host beta is drained");
  CHECK(value_of(moving.call<&Probe::restarts>().wait(10s)) == 1);
  CHECK(cast.host_of(moving) == cast.here());

  // Ctrl-C at join is the same, and waits for them to be gone.
  auto& gamma = cast.join("gamma");
  auto there = cast.probe_on("gamma", {.max_restarts = 1});
  const auto pid = static_cast<pid_t>(cast.info(there.id()).pid);
  gamma.signal(SIGINT);
  CHECK(gamma.wait(20s) == 0);
  CHECK(!is_alive(pid));
  CHECK(value_of(there.call<&Probe::restarts>().wait(10s)) == 1);

  // With nowhere to go the end is the end, and says why.
  auto last = value_of(users.spawn<Probe>({.max_restarts = -1}, "p"));
  value_of(cast.client().drain({cast.here()}, true));
  REQUIRE(eventually(10s, [&] { return cast.info(last.id()).state == "dead"; }));
  CHECK(has(cast.info(last.id()).cause, "it cannot begin anew"));
  CHECK(has(cast.info(last.id()).cause, cast.here() + " is being drained"));
}

TEST_CASE("plugins are looked at on every host: missing, another version, in another place") {
  Scratch scratch;
  const auto plugin = scratch / "libcast.so";
  fs::copy_file(kPlugin, plugin);
  Cast cast(plugin);
  auto users = cast.users();

  fs::rename(plugin, scratch / "away.so");
  cast.join("beta");
  fs::rename(scratch / "away.so", plugin);
  CHECK(cast.why_not("beta") ==
        "beta: [plugin] " + plugin + ": there is no such file on this host");
  CHECK(has(cast.failures(), "on beta: [plugin] " + plugin));

  fs::create_directory(scratch / "other");
  const auto other = scratch / "other/libcast.so";
  fs::copy_file(kPlugin, other);
  {
    std::ofstream tail(other, std::ios::app | std::ios::binary);
    tail << "x";  // loads as before, and is not the same
  }
  cast.join("gamma", {"--plugin", other});
  CHECK(has(cast.why_not("gamma"), other + ": is another version than on "));

  fs::create_directory(scratch / "own");
  const auto own = scratch / "own/libcast.so";
  fs::copy_file(kPlugin, own);
  cast.join("delta", {"--plugin", own});
  CHECK(cast.why_not("delta") == "");
  CHECK(value_of(cast.probe_on("delta").call<&Probe::name>().wait(10s)) == "p");

  // What cannot be placed says what each host lacks.
  const double cores = std::thread::hardware_concurrency();
  for (int i = 0; i < 2; ++i)
    value_of(users.spawn<Counter>({.resources = {.cores = cores}}, 0));
  const auto none = users.spawn<Counter>({.resources = {.cores = 1}}, 0);
  REQUIRE(!none);
  CHECK(has(none.error().what, "beta cannot have it ([plugin] "));
  CHECK(has(none.error().what, "gamma cannot have it ([plugin] "));
  CHECK(has(none.error().what, "delta has 0 of "));

  const auto stranger = cast.start("epsilon", {"--plugin", kPlugin});
  CHECK(stranger->wait(30s) == 1);
  CHECK(has(stranger->err(), "the cluster was started without a plugin called"));
}

}  // namespace troupe::testing
