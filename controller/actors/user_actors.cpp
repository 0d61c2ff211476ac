#include "controller/actors/user_actors.h"

#include <stdexcept>

#include "transport/wire/done.h"

namespace troupe::user {
namespace {

using wire::FailureCode;
using wire::UserActorState;

}  // namespace

void UserActors::add_classes(const wire::ClassList& list) {
  for (const auto& entry : list.classes) {
    const auto [known, added] = classes_.emplace(entry.name, entry);
    if (!added) {
      throw std::runtime_error("[plugin] " + entry.plugin + ": the class " + entry.name +
                               " is in " + known->second.plugin + " already");
    }
  }
}

bool UserActors::on_message(control::PeerId peer, const wire::Header& header,
                            std::span<const std::byte> payload) {
  switch (header.kind) {
    case wire::Kind::spawn_actor:
      if (repeated(peer, header)) return true;
      spawn(peer, header, wire::decode<wire::SpawnActor>(payload));
      return true;
    case wire::Kind::find_actor:
      find(peer, header, wire::decode<wire::FindActor>(payload));
      return true;
    case wire::Kind::kill_actor:
      if (repeated(peer, header)) return true;
      kill(peer, header, wire::decode<wire::KillActor>(payload));
      return true;
    case wire::Kind::watch_actor:
      watch(peer, header, wire::decode<wire::WatchActor>(payload).id);
      return true;
    case wire::Kind::list_actors:
      reply({peer, header}, list());
      return true;
    case wire::Kind::list_classes:
      reply({peer, header}, class_list());
      return true;
    default:
      return false;
  }
}

bool UserActors::repeated(control::PeerId peer, const wire::Header& header) {
  if (!header.is_request()) return false;
  auto& newest = newest_[peer];
  if (header.correlation <= newest) return true;
  newest = header.correlation;
  return false;
}

void UserActors::spawn(control::PeerId peer, const wire::Header& header,
                       const wire::SpawnActor& request) {
  const Asker asker{peer, header};
  const auto refuse = [&](FailureCode code, const std::string& why) {
    reply(asker, wire::Failure{code, "[spawn] " + why});
  };
  if (stopping_) return refuse(FailureCode::refused, "the cluster is stopping");
  const auto known = classes_.find(request.class_name);
  if (known == classes_.end()) {
    std::string names;
    for (const auto& [name, entry] : classes_)
      names += (names.empty() ? "" : ", ") + name;
    return refuse(FailureCode::bad_request,
                  "no plugin of this cluster has a class " + request.class_name +
                      (names.empty() ? "; it was started without plugins" : "; it has " + names));
  }
  if (known->second.types != request.types) {
    return refuse(FailureCode::bad_request, request.class_name + " is made from (" +
                                                known->second.arguments +
                                                "), the arguments are of other types");
  }
  if (request.get_or_create) {
    if (request.name.empty()) return refuse(FailureCode::bad_request, "get_or_create needs a name");
    if (auto* there = table_.find(request.name)) {
      if (there->request.class_name != request.class_name) {
        return refuse(FailureCode::bad_request, "\"" + request.name + "\" is " + there->label() +
                                                    ", not a " + request.class_name);
      }
      return wait_for(*there, asker);
    }
  }
  Owner owner{Owner::Kind::client, peer};
  if (const auto* actor = table_.by_peer(peer)) owner = {Owner::Kind::actor, actor->id};
  const auto added = table_.add(request, owner, known->second.plugin);
  if (const auto* failure = std::get_if<wire::Failure>(&added)) return reply(asker, *failure);
  const auto id = std::get<UserActorId>(added);
  wait_for(*table_.find(id), asker);
  launch(id);
}

wire::Failure UserActors::death_of(const UserActor& actor) const {
  if (actor.construction.code != FailureCode::none && actor.construction.code != FailureCode::lost)
    return actor.construction;
  return {FailureCode::died, actor.label() + " has ended: " + actor.cause};
}

wire::ActorAddress UserActors::address_of(const UserActor& actor) const {
  return {actor.id,           actor.incarnation, actor.request.class_name,
          actor.request.name, actor.endpoint,    actor.blob_endpoint,
          actor.ticket,       actor.keys};
}

void UserActors::wait_for(UserActor& actor, const Asker& asker) {
  watchers_[actor.id].insert(asker.peer);
  if (actor.state == UserActorState::running && actor.kill_reason.empty())
    return reply(asker, address_of(actor));
  waiting_[actor.id].push_back(asker);
}

void UserActors::answer_waiting(const UserActor& actor) {
  for (const auto& asker : std::exchange(waiting_[actor.id], {}))
    reply(asker, address_of(actor));
  waiting_.erase(actor.id);
}

void UserActors::find(control::PeerId peer, const wire::Header& header,
                      const wire::FindActor& wanted) {
  auto* actor = wanted.id != 0 ? table_.find(wanted.id) : table_.find(wanted.name);
  if (!actor) {
    const std::string what = wanted.id != 0 ? std::to_string(wanted.id) : "\"" + wanted.name + "\"";
    return reply(Asker{peer, header},
                 wire::Failure{FailureCode::not_found, "[actors] there is no actor " + what});
  }
  if (!actor->living()) return reply(Asker{peer, header}, death_of(*actor));
  wait_for(*actor, {peer, header});
}

void UserActors::kill(control::PeerId peer, const wire::Header& header,
                      const wire::KillActor& wanted) {
  const Asker asker{peer, header};
  auto* actor = table_.find(wanted.id);
  if (!actor) {
    return reply(asker, wire::Failure{FailureCode::not_found,
                                      "[actors] there is no actor " + std::to_string(wanted.id)});
  }
  if (!actor->living()) return reply(asker, wire::Done{actor->cause});
  for_death_[actor->id].push_back(asker);
  end(actor->id, "killed on request", !wanted.restart);
}

void UserActors::watch(control::PeerId peer, const wire::Header& header, UserActorId id) {
  const auto* actor = table_.find(id);
  if (!actor) {
    return reply(
        Asker{peer, header},
        wire::Failure{FailureCode::not_found, "[actors] there is no actor " + std::to_string(id)});
  }
  if (!actor->living()) return reply(Asker{peer, header}, death_of(*actor));
  watchers_[id].insert(peer);
  reply(Asker{peer, header}, wire::Done{});
}

wire::ActorList UserActors::list() const {
  wire::ActorList list;
  for (const auto& [id, actor] : table_.all()) {
    list.actors.push_back({.id = id,
                           .name = actor.request.name,
                           .class_name = actor.request.class_name,
                           .state = actor.state,
                           .host = actor.host,
                           .pid = actor.pid,
                           .detached = actor.request.detached,
                           .restarts = actor.restarts,
                           .cores = actor.request.cores,
                           .gpus = actor.gpus,
                           .owner = actor.owner.text(),
                           .cause = actor.cause});
  }
  return list;
}

wire::ClassList UserActors::class_list() const {
  wire::ClassList list;
  for (const auto& [name, entry] : classes_) {
    list.classes.push_back(entry);
    for (const auto& host : table_.hosts()) {
      if (const auto lack = host.lacks.find(entry.plugin); lack != host.lacks.end())
        list.classes.back().lacking.push_back(host.name + ": " + lack->second);
    }
  }
  return list;
}

}  // namespace troupe::user
