// Users' actors on hosts that come, go and are drained, processes that die and clients that leave,
// with an own clock and no process: what must hold whatever happens.
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>

#include "controller/actors/all_hosts.h"
#include "controller/actors/user_actors.h"
#include "tests/support/doctest.h"
#include "transport/wire/done.h"
#include "transport/wire/host_messages.h"

namespace troupe::user {
namespace {

using control::PeerId;

const std::string kOwn = "own";
const std::string kPlugin = "lib.so";

/// The world that users' actors see: hosts, agents, processes, clients, time.
class World final : public cluster::Outside, public HostLauncher {
 public:
  explicit World(std::uint64_t seed, std::size_t kept_dead = 256)
      : random_(seed),
        hosts_({.outside = *this,
                .own = *this,
                .own_host = kOwn,
                .access = {"token", "", false},
                .on_started = [this](auto id, auto incarnation,
                                     auto pid) { users_.started(id, incarnation, pid); },
                .on_exit = [this](auto id, auto incarnation,
                                  const HostExit& how) { exited(id, incarnation, how); }}),
        users_({.outside = *this,
                .launcher = hosts_,
                .token = "token",
                .note = {},
                .kept_dead = kept_dead}) {
    wire::ClassList classes;
    classes.classes.push_back(
        {.name = "C", .arguments = "", .methods = {}, .plugin = kPlugin, .lacking = {}});
    users_.add_classes(classes);
    users_.add_host({.name = kOwn, .cores = 3, .gpus = {0, 1}});
  }

  void play() {
    for (int i = 0; i < 3; ++i)
      new_client();
    for (int i = 0; i < 150; ++i) {
      after(0.02 * i + chance() * 0.02, [this] { blow(); });
    }
    run();
    if (stops) {
      users_.stop();
      run();
    }
    // All leave; what is detached is killed by one that comes last.
    for (const auto client : std::set(clients_))
      client_leaves(client);
    const auto last = new_client();
    for (const auto& [id, actor] : users_.table().all())
      if (actor.living()) ask(last, wire::KillActor{id, false});
    run();
    check_end();
  }

  bool stops = false;  // the cluster, before all leave
  std::size_t lost_hosts = 0, moved = 0, refused = 0, answered = 0;

  // Outside
  double now() const override { return now_; }
  std::uint64_t random() override { return random_() | 1; }
  void after(double seconds, std::function<void()> action) override {
    events_.push({now_ + seconds, ++events_made_, std::move(action)});
  }
  bool send_frame(PeerId peer, std::string frame) override {
    const auto header = wire::decode_header(wire::as_bytes(frame));
    if (clients_.contains(peer)) {
      client_hears(peer, header, frame);
      return true;
    }
    const auto host = host_of_.find(peer);
    if (host == host_of_.end()) return peers_.contains(peer);
    if (header.kind == wire::Kind::end_user_process) {
      const auto order = wire::decode<wire::EndUserProcess>(payload(frame));
      after(chance() * 0.05, [this, order] { die(order.id, order.incarnation, 9); });
    }
    return true;
  }
  void request_frame(PeerId peer, std::string frame, control::Milliseconds deadline,
                     control::ReplyHandler handler) override {
    const auto header = wire::decode_header(wire::as_bytes(frame));
    if (header.kind == wire::Kind::start_user_process) {
      const auto order = wire::decode<wire::StartUserProcess>(payload(frame));
      return after(chance() * 0.05, [this, peer, order, handler] {
        if (!host_of_.contains(peer))
          return handler(control::Reply(wire::Failure{wire::FailureCode::lost, "gone"}));
        if (chance() < 0.1)
          return handler(control::Reply(wire::Failure{wire::FailureCode::internal, "no memory"}));
        begin(order.id, order.incarnation, host_of_.at(peer));
        answer(handler, wire::ProcessStarted{7});
      });
    }
    // CreateActor, to a process.
    const double takes = chance() < 0.05 ? 1e9 : chance() * 0.1;
    if (takes > 1e6) {
      return after(double(deadline.count()) * 1e-3, [handler] {
        handler(control::Reply(wire::Failure{wire::FailureCode::timeout, "no answer"}));
      });
    }
    after(takes, [this, peer, handler] {
      if (!peers_.contains(peer))
        return handler(control::Reply(wire::Failure{wire::FailureCode::lost, "gone"}));
      if (chance() < 0.05)
        return handler(control::Reply(wire::Failure{wire::FailureCode::exception, "C: no"}));
      answer(handler, wire::ActorCreated{"at " + std::to_string(peers_.at(peer)), "b"});
    });
  }
  void drop(PeerId peer, const std::string&) override { peers_.erase(peer); }
  std::optional<double> last_progress(PeerId) const override { return std::nullopt; }
  void fetch_blob(std::uint64_t, const wire::BlobRef&, control::Milliseconds,
                  control::BlobHandler) override {}
  control::BlobId keep_blob(control::BlobBytes) override { return 0; }
  void drop_blob(control::BlobId) override {}
  std::uint32_t spawn(const cluster::Actor&, std::uint64_t) override { return 0; }
  void kill(cluster::ActorId) override {}

  // HostLauncher, of the own host
  std::uint32_t spawn(const HostLaunch& launch) override {
    CHECK(launch.host == kOwn);
    if (chance() < 0.1) throw std::runtime_error("no memory");
    begin(launch.id, launch.incarnation, kOwn);
    return 7;
  }
  void kill(const std::string&, std::uint64_t id) override {
    const auto* actor = users_.table().find(id);
    after(chance() * 0.05,
          [this, id, incarnation = actor->incarnation] { die(id, incarnation, 9); });
  }

 private:
  struct Event {
    double at;
    std::uint64_t number;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };
  struct Process {
    std::uint64_t id;
    std::string host;
    PeerId peer = 0;
  };

  double chance() { return std::uniform_real_distribution<>(0, 1)(random_); }
  std::size_t below(std::size_t count) { return random_() % count; }
  static std::span<const std::byte> payload(const std::string& frame) {
    return wire::as_bytes(frame).subspan(wire::kHeaderSize);
  }
  template <class M>
  static void answer(const control::ReplyHandler& handler, const M& message) {
    const auto frame = wire::encode_frame({}, message);
    handler(control::Reply(wire::decode_header(wire::as_bytes(frame)), payload(frame)));
  }

  void run() {
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at;
      event.action();
      check_always();
    }
  }

  /// A process begins; its hello comes later, if it lives to say it.
  void begin(std::uint64_t id, std::uint64_t incarnation, const std::string& host) {
    const auto* actor = users_.table().find(id);
    for (const auto& each : users_.table().hosts()) {
      // On its way while the host began to be drained, at most.
      if (actor && each.name == host) CHECK(!each.lacks.contains(actor->plugin));
    }
    processes_[incarnation] = {id, host};
    after(0.01 + chance() * 0.1, [this, id, incarnation] {
      const auto process = processes_.find(incarnation);
      if (process == processes_.end()) return;
      const PeerId peer = ++last_peer_;
      control::PeerInfo info{.id = peer, .incarnation = incarnation, .hello = {}};
      info.hello.role = "user-actor";
      info.hello.attributes = {{"token", "token"}, {"id", std::to_string(id)}};
      const auto* now = users_.table().find(id);
      const auto refusal = users_.hello(info);
      CHECK(refusal.has_value() == !(now && now->living() && now->incarnation == incarnation));
      if (refusal) return after(0.01, [this, id, incarnation] { die(id, incarnation, 0); });
      peers_[peer] = incarnation;
      process->second.peer = peer;
      users_.ready(peer);
    });
  }

  /// A process ends, and whoever is its parent says so.
  void die(std::uint64_t id, std::uint64_t incarnation, int signal) {
    const auto node = processes_.extract(incarnation);
    if (node.empty()) return;
    const auto& process = node.mapped();
    if (process.peer != 0 && peers_.erase(process.peer) > 0 && chance() < 0.5)
      users_.lost(process.peer, "broken");
    HostExit how;
    how.signal = signal;
    how.how = "ended";
    if (process.host == kOwn) return users_.exited(id, incarnation, how);
    hosts_.ended(process.host, {.id = id,
                                .incarnation = incarnation,
                                .signal = signal,
                                .how = "ended",
                                .method = {},
                                .log = {}});
  }

  void exited(std::uint64_t id, std::uint64_t incarnation, const HostExit& how) {
    const auto* actor = users_.table().find(id);
    const bool old = !actor || actor->incarnation != incarnation;
    const auto state = actor ? actor->state : wire::UserActorState::dead;
    users_.exited(id, incarnation, how);
    // The word of a dead incarnation changes nothing.
    if (old && actor) CHECK(actor->state == state);
  }

  void join(const std::string& name) {
    if (agents_.contains(name)) return;
    const PeerId peer = ++last_peer_;
    agents_[name] = peer;
    host_of_[peer] = name;
    hosts_.joined(name, peer);
    Host host{.name = name,
              .cores = chance() < 0.5 ? 2.0 : 1.0,
              .gpus = {static_cast<std::int32_t>(below(3))}};
    if (chance() < 0.3) host.lacks[kPlugin] = "another version";
    after(chance() * 0.1, [this, host, peer] {
      if (host_of_.contains(peer)) users_.add_host(host);
    });
  }

  void lose(const std::string& name) {
    const auto agent = agents_.extract(name);
    if (agent.empty()) return;
    ++lost_hosts;
    host_of_.erase(agent.mapped());
    users_.remove_host(name);
    hosts_.lost(name, "cut off");
    // On the far side they go on a while.
    for (const auto& [incarnation, process] : processes_) {
      if (process.host == name)
        after(chance() * 5, [this, incarnation = incarnation] { processes_.erase(incarnation); });
    }
  }

  PeerId new_client() {
    clients_.insert(++last_peer_);
    return last_peer_;
  }
  void client_leaves(PeerId client) {
    clients_.erase(client);
    std::erase_if(open_, [&](const auto& each) { return each.second == client; });
    users_.lost(client, "left");
  }

  template <class M>
  void ask(PeerId client, const M& message) {
    wire::Header header;
    header.kind = M::kKind;
    header.correlation = ++last_call_;
    open_[last_call_] = client;
    const auto bytes = wire::encode(message);
    CHECK(users_.on_message(client, header, wire::as_bytes(bytes)));
  }

  void client_hears(PeerId client, const wire::Header& header, const std::string& frame) {
    if (!header.is_reply()) return;
    const auto call = open_.find(header.correlation);
    REQUIRE(call != open_.end());  // nothing is answered twice
    CHECK(call->second == client);
    open_.erase(call);
    ++answered;
    if (header.kind != wire::Kind::actor_address) {
      refused += header.kind == wire::Kind::error ? 1 : 0;
      return;
    }
    const auto address = wire::decode<wire::ActorAddress>(payload(frame));
    const auto* actor = users_.table().find(address.id);
    REQUIRE(actor);
    CHECK(actor->incarnation == address.incarnation);
    CHECK(address.endpoint == "at " + std::to_string(address.incarnation));
  }

  void blow() {
    const auto client = *std::next(clients_.begin(), static_cast<long>(below(clients_.size())));
    const auto guest = "guest " + std::to_string(below(3));
    const auto& known = users_.table().all();
    const auto some_actor = 1 + below(known.empty() ? 1 : known.rbegin()->first);
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        wire::SpawnActor wanted;
        wanted.class_name = "C";
        wanted.cores = double(below(3)) / 2;
        wanted.gpus = chance() < 0.2 ? 1 : 0;
        wanted.max_restarts = static_cast<std::int32_t>(below(4)) - 1;
        wanted.detached = chance() < 0.3;
        wanted.deadline_ms = 2000;
        wanted.group = std::string(1, static_cast<char>('a' + below(2)));
        wanted.placement = static_cast<wire::Placement>(below(3));
        if (chance() < 0.3) wanted.name = "n" + std::to_string(below(3));
        wanted.get_or_create = !wanted.name.empty() && chance() < 0.5;
        return ask(client, wanted);
      }
      case 4:
        return ask(client, wire::KillActor{some_actor, chance() < 0.5});
      case 5:
        return ask(client, wire::FindActor{some_actor, ""});
      case 6:
        if (clients_.size() > 1) client_leaves(client);
        new_client();
        return;
      case 7:
      case 8:
        return join(guest);
      case 9:
        return lose(guest);
      case 10:
        if (chance() < 0.5) users_.drain_host(guest, chance() < 0.5);
        return;
      default:
        if (processes_.empty()) return;
        const auto victim =
            std::next(processes_.begin(), static_cast<long>(below(processes_.size())));
        return die(victim->second.id, victim->first, 11);
    }
  }

  void check_always() {
    for (const auto& host : users_.table().hosts()) {
      double cores = 0;
      std::set<std::int32_t> gpus;
      for (const auto& [id, actor] : users_.table().all()) {
        if (!actor.living() || actor.host != host.name) continue;
        cores += actor.request.cores;
        for (const auto gpu : actor.gpus)
          CHECK(gpus.insert(gpu).second);
      }
      CHECK(cores <= host.cores);
    }
    std::set<std::string> names;
    for (const auto& [id, actor] : users_.table().all()) {
      if (actor.living() && !actor.request.name.empty())
        CHECK(names.insert(actor.request.name).second);
      const bool there = actor.host == kOwn || agents_.contains(actor.host);
      if (actor.state == wire::UserActorState::running) CHECK(there);
      if (actor.restarts > 0 && there) ++moved;
    }
  }

  void check_end() {
    CHECK(open_.empty());  // all were answered
    CHECK(processes_.empty());
    CHECK(hosts_.running() == 0);
    for (const auto& host : users_.table().hosts()) {
      CHECK(users_.table().free_cores(host.name) == host.cores);
      CHECK(users_.table().free_gpus(host.name) == host.gpus);
    }
    for (const auto& [id, actor] : users_.table().all())
      CHECK(!actor.living());
  }

  std::mt19937_64 random_;
  double now_ = 0;
  std::uint64_t events_made_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  PeerId last_peer_ = 100;
  std::uint64_t last_call_ = 0;
  std::map<std::uint64_t, PeerId> open_;  // client by correlation
  std::set<PeerId> clients_;
  std::map<std::string, PeerId> agents_;
  std::map<PeerId, std::string> host_of_;
  std::map<PeerId, std::uint64_t> peers_;       // incarnation of a process by its link
  std::map<std::uint64_t, Process> processes_;  // by incarnation
  AllHosts hosts_;
  UserActors users_;
};

}  // namespace

TEST_CASE("user actors: 1,000 seeds of hosts, processes and clients that come and go") {
  std::size_t lost = 0, moved = 0, refused = 0, answered = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    CAPTURE(seed);
    auto world = std::make_unique<World>(seed);
    world->play();
    lost += world->lost_hosts;
    moved += world->moved;
    refused += world->refused;
    answered += world->answered;
  }
  // It was no empty play.
  CHECK(lost > 1000);
  CHECK(moved > 1000);
  CHECK(refused > 1000);
  CHECK(answered > 20'000);
}

TEST_CASE("user actors: the same where next to none of the dead are remembered, and at a stop") {
  for (std::uint64_t seed = 2001; seed <= 2200; ++seed) {
    CAPTURE(seed);
    auto world = std::make_unique<World>(seed, seed % 3);
    world->stops = seed % 2 == 0;
    world->play();
  }
}

}  // namespace troupe::user
