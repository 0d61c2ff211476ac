#include <iterator>

#include "tests/controller/user_world.h"
#include "tests/support/doctest.h"
#include "transport/wire/codec.h"

// What happens to hosts and clients, and what must hold whatever happens.
namespace troupe::user {

using control::PeerId;

void UserWorld::play() {
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

void UserWorld::join(const std::string& name) {
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

void UserWorld::lose(const std::string& name) {
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

PeerId UserWorld::new_client() {
  clients_.insert(++last_peer_);
  return last_peer_;
}

void UserWorld::client_leaves(PeerId client) {
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
  const auto bytes = wire::encode(message);
  CHECK(users_.on_message(client, header, wire::as_bytes(bytes)));
}

void UserWorld::client_hears(PeerId client, const wire::Header& header, const std::string& frame) {
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

void UserWorld::check_end() {
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

}  // namespace troupe::user
