#include "controller/user_actors/user_actors.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>

#include "base/format.h"
#include "transport/control/keys.h"
#include "transport/wire/done.h"

namespace troupe::user {
void UserActors::add_classes(const wire::ClassList& list) {
  for (const auto& entry : list.classes) {
    const auto [known, added] = classes_.emplace(entry.name, entry);
    if (!added) {
      throw std::runtime_error("[plugin] " + entry.plugin + ": the class " + entry.name +
                               " is in " + known->second.plugin + " already");
    }
  }
}

bool UserActors::repeated(const Asker& asker) {
  if (!asker.header.is_request()) return false;
  auto& newest = newest_[asker.peer];
  if (asker.header.correlation <= newest) return true;
  newest = asker.header.correlation;
  return false;
}

void UserActors::handle(const Asker& asker, const wire::SpawnActor& request) {
  if (repeated(asker)) return;
  const auto refuse = [&](FailureCode code, const std::string& why) {
    reply(asker, wire::Failure{code, "[spawn] " + why});
  };
  if (stopping_) return refuse(FailureCode::refused, *stopping_);
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
  Owner owner{Owner::Kind::client, asker.peer};
  if (const auto* actor = table_.by_peer(asker.peer)) owner = {Owner::Kind::actor, actor->id};
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

void UserActors::handle(const Asker& asker, const wire::FindActor& wanted) {
  auto* actor = wanted.id != 0 ? table_.find(wanted.id) : table_.find(wanted.name);
  if (!actor) {
    const std::string what = wanted.id != 0 ? std::to_string(wanted.id) : "\"" + wanted.name + "\"";
    return reply(asker,
                 wire::Failure{FailureCode::not_found, "[actors] there is no actor " + what});
  }
  if (!actor->living()) return reply(asker, death_of(*actor));
  wait_for(*actor, asker);
}

void UserActors::handle(const Asker& asker, const wire::KillActor& wanted) {
  if (repeated(asker)) return;
  auto* actor = table_.find(wanted.id);
  if (!actor) {
    return reply(asker, wire::Failure{FailureCode::not_found,
                                      fmt::format("[actors] there is no actor {}", wanted.id)});
  }
  if (!actor->living()) return reply(asker, wire::Done{actor->cause});
  for_death_[actor->id].push_back(asker);
  end(actor->id, "killed on request", !wanted.restart);
}

void UserActors::handle(const Asker& asker, const wire::WatchActor& wanted) {
  const auto* actor = table_.find(wanted.id);
  if (!actor) {
    return reply(asker, wire::Failure{FailureCode::not_found,
                                      fmt::format("[actors] there is no actor {}", wanted.id)});
  }
  if (!actor->living()) return reply(asker, death_of(*actor));
  watchers_[wanted.id].insert(asker.peer);
  reply(asker, wire::Done{});
}

void UserActors::handle(const Asker& asker, const wire::ListActors&) {
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
  reply(asker, list);
}

void UserActors::handle(const Asker& asker, const wire::ListClasses&) {
  wire::ClassList list;
  for (const auto& [name, entry] : classes_) {
    list.classes.push_back(entry);
    for (const auto& host : table_.hosts()) {
      if (const auto lack = host.lacks.find(entry.plugin); lack != host.lacks.end())
        list.classes.back().lacking.push_back(host.name + ": " + lack->second);
    }
  }
  reply(asker, list);
}

// UserActors: the lives of actors' processes.

namespace {

using wire::FailureCode;

constexpr double kFastRestart = 0.05;  // seconds; doubles with each restart, up to
constexpr double kSlowRestart = 5;
constexpr std::uint32_t kLongestStart = 86'400'000;  // ms
constexpr double kShortestLook = 0.05;               // seconds
constexpr double kLongestLook = 1;
constexpr std::size_t kLongestFailure = 16u << 10;  // bytes of what a constructor has thrown
constexpr double kSecondLook = 0.3;                 // longer than a heartbeat

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", seconds);
  return text.data();
}

}  // namespace

std::optional<std::string> UserActors::hello(const control::PeerInfo& peer) {
  const auto attribute = [&](const char* key) {
    const auto found = peer.hello.attributes.find(key);
    return found == peer.hello.attributes.end() ? std::string() : found->second;
  };
  if (!control::same_secret(attribute("token"), tools_.access.token)) return "not of this cluster";
  for (const auto& [id, actor] : table_.all()) {
    if (std::to_string(id) != attribute("id")) continue;
    if (!actor.has_process() || actor.incarnation != peer.incarnation || actor.peer != 0)
      return fmt::format("actor {} is another process now", id);
    table_.find(id)->peer = peer.id;
    return std::nullopt;
  }
  return "there is no such actor";
}

bool UserActors::has_process(std::uint64_t incarnation) const {
  return std::ranges::any_of(table_.all(), [&](const auto& entry) {
    return entry.second.has_process() && entry.second.incarnation == incarnation;
  });
}

bool UserActors::ready(control::PeerId peer) {
  const auto* actor = table_.by_peer(peer);
  if (!actor) return false;
  wire::CreateActor create;
  create.id = actor->id;
  create.class_name = actor->request.class_name;
  create.types = actor->request.types;
  create.arguments = actor->request.arguments;
  create.name = actor->request.name;
  create.restarts = actor->restarts;
  create.gpus = actor->gpus;
  tools_.environment.request(
      peer, create, control::Milliseconds(std::min(actor->request.deadline_ms, kLongestStart)),
      [this, id = actor->id, incarnation = actor->incarnation](const control::Reply& answer) {
        created(id, incarnation, answer);
      });
  return true;
}

void UserActors::created(UserActorId id, std::uint64_t incarnation, const control::Reply& answer) {
  auto* actor = table_.find(id);
  if (!actor || actor->incarnation != incarnation || actor->state != UserActorState::starting)
    return;
  if (!answer) {
    const auto& failure = answer.failure();
    if (failure.code == FailureCode::lost) return;  // its end says more
    actor->construction = failure;
    actor->construction.what.resize(std::min(failure.what.size(), kLongestFailure));
    return end(id, failure.what, actor->restarts == 0);
  }
  const auto where = answer.as<wire::ActorCreated>();
  table_.created(id, where.endpoint, where.blob_endpoint);
  answer_waiting(*actor);
  if (actor->request.hang_after_ms > 0) watch_for_hangs(id, incarnation, 0);
}

void UserActors::watch_for_hangs(UserActorId id, std::uint64_t incarnation, double delay,
                                 std::uint64_t suspect) {
  tools_.environment.after(delay, [this, id, incarnation, suspect] {
    auto* actor = table_.find(id);
    if (!actor || actor->incarnation != incarnation || actor->state != UserActorState::running ||
        !actor->kill_reason.empty())
      return;
    const double allowed = actor->request.hang_after_ms / 1000.0;
    double left = allowed;
    const auto pace = tools_.environment.pace(actor->peer);
    if (pace && pace->count % 2 == 1) {  // in a method
      // By what its heartbeats say, not by a clock that goes on while nobody listens; and once
      // more, since some may lie unread where this process itself stood still.
      const double stood = pace->heard - pace->changed;
      if (stood >= allowed && suspect != pace->count)
        return watch_for_hangs(id, incarnation, kSecondLook, pace->count);
      if (stood >= allowed) {
        actor->hung_for = stood;
        return end(id, "hung for " + seconds_text(stood) + " s", false);
      }
      left = allowed - stood;
    }
    watch_for_hangs(id, incarnation, std::clamp(left / 2, kShortestLook, kLongestLook));
  });
}

void UserActors::launch(UserActorId id) {
  auto* actor = table_.find(id);
  if (!actor || !actor->living() || stopping_) return;
  const auto& known = classes_.at(actor->request.class_name);
  const auto incarnation = tools_.environment.random();
  const auto ticket = fmt::format("{}{}", tools_.environment.random(), tools_.environment.random());
  std::uint32_t pid = 0;
  std::string failure;
  std::optional<control::DoorKeys> door;
  try {
    if (tools_.keyed) door = control::DoorKeys::make();
    auto* processes = tools_.process_host(actor->host);
    if (!processes)
      throw std::runtime_error("[spawn] host " + actor->host + " is not there any more");
    pid = processes->start({.owner = {PeerRole::user_actor, id},
                            .incarnation = incarnation,
                            .token = tools_.access.token,
                            .keys = tools_.access.keys,
                            .user = {.plugin = known.plugin,
                                     .torch = known.needs_torch,
                                     .ticket = ticket,
                                     .door = door ? door->for_door() : "",
                                     .gpus = actor->gpus,
                                     .insecure = tools_.access.insecure}});
  } catch (const std::exception& error) {
    failure = error.what();
  }
  table_.spawned(id, incarnation, pid, ticket, door ? door->for_callers() : "");
  if (!failure.empty()) {
    cluster::ExitCause how{.by_signal = false, .number = 1, .log = {}};
    how.told = failure;
    return exited(id, incarnation, how);
  }
  const double deadline = std::min(actor->request.deadline_ms, kLongestStart) / 1000.0;
  tools_.environment.after(deadline, [this, id, incarnation] {
    const auto* now = table_.find(id);
    if (!now || now->incarnation != incarnation || now->state != UserActorState::starting) return;
    end(id, "its constructor was not done within its deadline", now->restarts == 0);
  });
}

void UserActors::end(UserActorId id, const std::string& why, bool for_good) {
  auto* actor = table_.find(id);
  if (!actor || !actor->living()) return;
  if (for_good) actor->wanted = false;
  if (actor->state == UserActorState::restarting) {
    // Between two processes: there is nothing to kill.
    if (!for_good) return;
    cluster::ExitCause how;
    how.told = why;
    actor->state = UserActorState::starting;
    actor->kill_reason = why;
    return exited(id, actor->incarnation, how);
  }
  if (actor->kill_reason.empty()) actor->kill_reason = why;
  if (auto* processes = tools_.process_host(actor->host))
    processes->end({PeerRole::user_actor, id}, why);
}

std::string UserActors::drain_host(const std::string& name, bool now) {
  if (!table_.drain_host(name)) return "";
  std::vector<UserActorId> there;
  std::string labels;
  for (const auto& [id, actor] : table_.all()) {
    if (!actor.living() || actor.host != name) continue;
    there.push_back(id);
    labels += (labels.empty() ? "" : ", ") + actor.label();
  }
  if (there.empty()) return "";
  const std::string who = (there.size() == 1 ? "a user's actor on " : "users' actors on ") + name;
  if (!now) return who + (there.size() == 1 ? " stays" : " stay") + " until the end: " + labels;
  for (const auto id : there)
    end(id, "its host " + name + " is drained", false);
  return who + (there.size() == 1 ? " is" : " are") + " ended: " + labels;
}

void UserActors::started(UserActorId id, std::uint64_t incarnation, std::uint32_t pid) {
  auto* actor = table_.find(id);
  if (actor && actor->has_process() && actor->incarnation == incarnation) actor->pid = pid;
}

void UserActors::exited(UserActorId id, std::uint64_t incarnation, const cluster::ExitCause& how) {
  const auto* before = table_.find(id);
  if (!before || before->incarnation != incarnation || !before->has_process()) return;
  const std::string reason = how.with_host ? "" : before->kill_reason;
  std::string cause = reason.empty() ? how.text() : reason;
  if (!reason.empty() && before->hung_for > 0 && !how.method.empty())
    cause = "hung in " + how.method + " for " + seconds_text(before->hung_for) + " s";
  // Its process may live on, on the far side of a broken network.
  if (how.with_host && before->peer != 0) tools_.environment.drop(before->peer, cause);
  const auto again = table_.exited(id, incarnation, cause);
  if (!again) return;
  const UserActor& actor = *table_.find(id);
  wire::ActorDied died{.id = id,
                       .incarnation = incarnation,
                       .name = actor.request.name,
                       .class_name = actor.request.class_name,
                       .cause = cause,
                       .signal = how.by_signal ? how.number : 0,
                       .exit_code = how.by_signal ? 0 : how.number,
                       .method = how.method,
                       .log = how.log,
                       .restarting = *again};
  if ((reason.empty() || before->hung_for > 0) && tools_.note)
    tools_.note(actor.label() + ": " + cause);
  const auto watching = watchers_[id];
  for (const auto peer : watching)
    tools_.environment.send(peer, died);
  for (const auto& asker : std::exchange(for_death_[id], {}))
    reply(asker, wire::Done{cause});
  for_death_.erase(id);
  // What it had spawned goes with its process: a new one knows nothing of them.
  for (const auto owned : table_.owned_by({Owner::Kind::actor, id}))
    end(owned, "its owner, " + actor.label() + ", has ended", true);
  if (*again) {
    const double delay = std::min(
        kSlowRestart,
        kFastRestart * static_cast<double>(1ull << std::min<std::uint64_t>(actor.restarts, 10)));
    tools_.environment.after(actor.restarts == 0 ? 0 : delay,
                             [this, id, incarnation] { begin_again(id, incarnation); });
    return;
  }
  watchers_.erase(id);
  for (const auto& asker : std::exchange(waiting_[id], {}))
    reply(asker, death_of(actor));
  waiting_.erase(id);
}

void UserActors::begin_again(UserActorId id, std::uint64_t incarnation) {
  auto* actor = table_.find(id);
  if (!actor || actor->incarnation != incarnation || actor->state != UserActorState::restarting)
    return;
  if (const auto nowhere = table_.place_again(id))
    return end(id, actor->cause + "; it cannot begin anew: " + nowhere->what, true);
  launch(id);
}

bool UserActors::lost(control::PeerId peer, const std::string& why) {
  newest_.erase(peer);
  for (auto& [id, peers] : watchers_)
    peers.erase(peer);
  for (auto* askers : {&waiting_, &for_death_}) {
    for (auto& [id, each] : *askers)
      std::erase_if(each, [&](const Asker& asker) { return asker.peer == peer; });
  }
  if (auto* actor = table_.by_peer(peer)) {
    actor->peer = 0;
    // A process that ends by itself is reaped at once and has its own cause; one that hangs has
    // not.
    const auto incarnation = actor->incarnation;
    tools_.environment.after(0.2, [this, id = actor->id, incarnation, why] {
      const auto* now = table_.find(id);
      if (now && now->living() && now->incarnation == incarnation)
        end(id, "its link to the controller is lost: " + why, false);
    });
    return true;
  }
  for (const auto id : table_.owned_by({Owner::Kind::client, peer}))
    end(id, "its client is gone", true);
  return false;
}

void UserActors::stop(const std::string& why) {
  stopping_ = why;
  for (const auto& [id, actor] : table_.all()) {
    if (actor.living()) end(id, why, true);
  }
}

}  // namespace troupe::user
