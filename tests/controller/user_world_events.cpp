#include <iterator>

#include "tests/controller/user_world.h"
#include "transport/wire/codec.h"

// What happens to hosts and clients, and what must hold whatever happens.
namespace troupe::user {

using control::PeerId;

constexpr double kMostCores = 2;  // of a guest

void UserWorld::play() {
  for (int i = 0; i < 3; ++i)
    new_client();
  for (int i = 0; i < 150; ++i) {
    after(0.02 * i + chance() * 0.02, [this] { blow(); });
  }
  run();
  if (stops) {
    users_.stop("the cluster is stopping");
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

void UserWorld::join(const std::string& name) {
  if (agents_.contains(name)) return;
  const PeerId peer = ++last_peer_;
  note(name + " joins");
  agents_[name] = peer;
  host_of_[peer] = name;
  others_[name] = std::make_unique<cluster::RemoteProcessHost>(
      *this, peer, name,
      [this](const auto& owner, auto incarnation, auto pid) {
        users_.started(owner.id, incarnation, pid);
      },
      [this](const auto& owner, auto incarnation, const auto& how) {
        exited(owner.id, incarnation, how);
      });
  Host host{.name = name,
            .cores = chance() < 0.5 ? kMostCores : 1.0,
            .gpus = {static_cast<std::int32_t>(below(3))}};
  if (chance() < 0.3) host.lacks[kPlugin] = "another version";
  after(chance() * 0.1, [this, host, peer] {
    if (host_of_.contains(peer)) users_.add_host(host);
  });
}

void UserWorld::lose(const std::string& name) {
  const auto agent = agents_.extract(name);
  if (agent.empty()) return;
  note(name + " is lost");
  ++lost_hosts;
  host_of_.erase(agent.mapped());
  users_.remove_host(name);
  others_.at(name)->lost("cut off");
  // On the far side they go on a while.
  for (const auto& [incarnation, process] : processes_) {
    if (process.host == name)
      after(chance() * 5, [this, incarnation = incarnation] { processes_.erase(incarnation); });
  }
}

PeerId UserWorld::new_client() {
  clients_.insert(++last_peer_);
  return last_peer_;
}

void UserWorld::client_leaves(PeerId client) {
  note("client " + std::to_string(client) + " leaves");
  clients_.erase(client);
  std::erase_if(open_, [&](const auto& each) { return each.second == client; });
  users_.lost(client, "left");
}

template <class M>
void UserWorld::ask(PeerId client, const M& message) {
  wire::Header header;
  header.kind = M::kKind;
  header.correlation = ++last_call_;
  open_[last_call_] = client;
  note("client " + std::to_string(client) + " asks, message kind " +
       std::to_string(static_cast<int>(M::kKind)) + ", call " + std::to_string(last_call_));
  users_.handle({client, header}, message);
  if (chance() < 0.8) return;
  after(chance() < 0.5 ? 0 : chance(), [this, client, header, message] {
    if (!clients_.contains(client)) return;
    ++repeated;
    asked_twice_.insert(header.correlation);
    changes_nothing("a request that came twice", [&] { users_.handle({client, header}, message); });
  });
}

void UserWorld::haunt(const Process& process, std::uint64_t incarnation) {
  after(chance() < 0.5 ? 0.1 : chance() * 3, [this, process, incarnation] {
    ++ghosts;
    changes_nothing("a word of a dead process", [&] {
      control::PeerInfo info{.id = last_peer_ + 1, .incarnation = incarnation, .hello = {}};
      info.hello.role = PeerRole::user_actor;
      info.hello.attributes = {{"token", "token"}, {"id", std::to_string(process.id)}};
      must(users_.hello(info).has_value(), "a dead process was welcomed");
      must(process.peer == 0 || !users_.lost(process.peer, "broken"), "a dead process had a link");
      users_.started(process.id, incarnation, 8);
      cluster::ExitCause how;
      how.told = "ended once more";
      users_.exited(process.id, incarnation, how);
      if (process.host != kOwn)
        others_.at(process.host)
            ->ended({.owner = {PeerRole::user_actor, process.id},
                     .incarnation = incarnation,
                     .by_signal = true,
                     .number = 9});
    });
  });
}

void UserWorld::changes_nothing(const std::string& what, const std::function<void()>& action) {
  const auto before = state_text();
  action();
  const auto now = state_text();
  if (now != before) throw Broken(what + " changed\n" + before + "to\n" + now);
}

std::string UserWorld::state_text() const {
  std::string text;
  for (const auto& [id, actor] : users_.table().all()) {
    text += std::to_string(id) + " " + std::to_string(static_cast<int>(actor.state)) + " as " +
            std::to_string(actor.incarnation) + " pid " + std::to_string(actor.pid) + " peer " +
            std::to_string(actor.peer) + " restarts " + std::to_string(actor.restarts) + " on " +
            actor.host + " " + actor.endpoint + " " + actor.kill_reason + " " + actor.cause +
            (actor.wanted ? "\n" : " unwanted\n");
  }
  return text + std::to_string(events_made_) + " events, " + std::to_string(processes_.size()) +
         " processes, " + std::to_string(running_elsewhere()) + " on hosts\n";
}

void UserWorld::client_hears(PeerId client, const wire::Header& header, const std::string& frame) {
  if (!header.is_reply()) return;
  const auto call = open_.find(header.correlation);
  if (call == open_.end() && asked_twice_.contains(header.correlation)) return;
  must(call != open_.end(), "a call was answered twice");
  must(call->second == client, "an answer went to another client");
  open_.erase(call);
  ++answered;
  note("call " + std::to_string(header.correlation) + " is answered, kind " +
       std::to_string(static_cast<int>(header.kind)));
  if (header.kind != wire::Kind::actor_address) {
    refused += header.kind == wire::Kind::error ? 1 : 0;
    return;
  }
  const auto address = wire::decode<wire::ActorAddress>(payload(frame));
  const auto* actor = users_.table().find(address.id);
  must(actor, "the address of no actor was given");
  must(actor->incarnation == address.incarnation, "the address of a dead process was given");
  must(address.endpoint == "at " + std::to_string(address.incarnation), "a wrong endpoint");
}

void UserWorld::blow() {
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

void UserWorld::check_always() {
  for (const auto& host : users_.table().hosts()) {
    double kept = 0, used = 0;
    std::set<std::int32_t> gpus;
    for (const auto& [id, actor] : users_.table().all()) {
      if (!actor.living() || actor.host != host.name) continue;
      kept += actor.request.cores;
      if (actor.has_process()) used += actor.request.cores;
      for (const auto gpu : actor.gpus)
        must(gpus.insert(gpu).second, "a GPU is given twice");
    }
    must(used <= host.cores, "more cores are given than a host has");
    // What waits for its restart keeps its place until then, also on one that came back smaller.
    const double once = host.name == kOwn ? host.cores : kMostCores;
    must(kept <= once, "more cores are kept than a host ever had");
  }
  std::set<std::string> names;
  for (const auto& [id, actor] : users_.table().all()) {
    if (actor.living() && !actor.request.name.empty())
      must(names.insert(actor.request.name).second, "two actors have a name");
    const bool there = actor.host == kOwn || agents_.contains(actor.host);
    if (actor.state == UserActorState::running) must(there, "an actor runs on a host that is lost");
    if (actor.restarts > 0 && there) ++moved;
  }
}

void UserWorld::check_end() {
  must(open_.empty(), "a call was not answered");
  must(processes_.empty(), "a process is left");
  must(running_elsewhere() == 0, "a process is thought to run");
  for (const auto& host : users_.table().hosts()) {
    must(users_.table().free_cores(host.name) == host.cores, "cores did not come back");
    must(users_.table().free_gpus(host.name) == host.gpus, "GPUs did not come back");
  }
  for (const auto& [id, actor] : users_.table().all())
    must(!actor.living(), "an actor lives on");
}

}  // namespace troupe::user
