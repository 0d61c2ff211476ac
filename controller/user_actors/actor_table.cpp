#include "controller/user_actors/actor_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "base/text.h"

namespace troupe::user {
namespace {

using wire::FailureCode;

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

std::string Owner::text() const {
  if (kind == Kind::client) return "client";
  if (kind == Kind::actor) return fmt::format("actor {}", id);
  return "";
}

std::string UserActor::label() const {
  return fmt::format("{}{} (actor {})", request.class_name,
                     request.name.empty() ? "" : " \"" + request.name + "\"", id);
}

void ActorTable::add_host(Host host) {
  const auto same = std::find_if(hosts_.begin(), hosts_.end(),
                                 [&](const Host& other) { return other.name == host.name; });
  if (same == hosts_.end()) {
    hosts_.push_back(std::move(host));
  } else {
    *same = std::move(host);
  }
}

void ActorTable::remove_host(const std::string& name) {
  std::erase_if(hosts_, [&](const Host& host) { return host.name == name; });
}

bool ActorTable::drain_host(const std::string& name) {
  for (auto& host : hosts_) {
    if (host.name == name) return host.draining = true;
  }
  return false;
}

const Host* ActorTable::host(const std::string& name) const {
  for (const auto& host : hosts_) {
    if (host.name == name) return &host;
  }
  return nullptr;
}

std::variant<UserActorId, wire::Failure> ActorTable::add(const wire::SpawnActor& request,
                                                         Owner owner, const std::string& plugin) {
  const auto bad = [](const std::string& why) {
    return wire::Failure{FailureCode::bad_request, "[spawn] " + why};
  };
  if (request.gpus < 0) return bad(fmt::format("gpus is {}", request.gpus));
  if (!(request.cores >= 0) || std::isinf(request.cores))
    return bad("cores is " + short_number(request.cores));
  if (request.max_restarts < -1)
    return bad(fmt::format("max_restarts is {}: -1 means always", request.max_restarts));
  if (!request.name.empty()) {
    if (const auto* other = find(request.name))
      return wire::Failure{FailureCode::refused, "[spawn] the name \"" + request.name +
                                                     "\" is taken by " + other->label()};
  }
  if (request.detached) owner = {};
  if (const auto failure = too_much(request, owner)) return *failure;
  auto chosen = choose(request, plugin);
  if (const auto* failure = std::get_if<wire::Failure>(&chosen)) return *failure;
  const Host& host = *std::get<const Host*>(chosen);
  forget_oldest();
  UserActor actor;
  actor.id = ++last_id_;
  actor.request = request;
  actor.owner = owner;
  actor.plugin = plugin;
  actor.host = host.name;
  actor.gpus = free_gpus(host.name);
  actor.gpus.resize(static_cast<std::size_t>(request.gpus));
  actors_.emplace(actor.id, std::move(actor));
  return last_id_;
}

std::optional<wire::Failure> ActorTable::too_much(const wire::SpawnActor& request,
                                                  const Owner& owner) const {
  const auto failure = [](FailureCode code, const std::string& why) {
    return wire::Failure{code, "[spawn] " + why};
  };
  for (const auto* text : {&request.name, &request.group}) {
    if (text->size() > bounds_.name_bytes)
      return failure(FailureCode::bad_request,
                     fmt::format("{} has {} bytes, at most {} are taken",
                                 text == &request.name ? "the name" : "the group's name",
                                 text->size(), bounds_.name_bytes));
  }
  std::size_t living = 0;
  std::size_t bytes = request.arguments.size();
  std::size_t own_bytes = bytes;
  for (const auto& [id, actor] : actors_) {
    if (!actor.living()) continue;
    ++living;
    bytes += actor.request.arguments.size();
    if (actor.owner == owner) own_bytes += actor.request.arguments.size();
  }
  if (living >= bounds_.living)
    return failure(FailureCode::overloaded,
                   fmt::format("{} users' actors live already, no more are taken", living));
  if (own_bytes > bounds_.argument_bytes_of_one || bytes > bounds_.argument_bytes)
    return failure(
        FailureCode::overloaded,
        fmt::format("constructors' arguments of {} bytes for one owner and {} in all would be "
                    "kept, at most {} and {} are",
                    own_bytes, bytes, bounds_.argument_bytes_of_one, bounds_.argument_bytes));
  return std::nullopt;
}

std::optional<wire::Failure> ActorTable::place_again(UserActorId id) {
  auto& actor = actors_.at(id);
  if (keeps_place(actor)) return std::nullopt;
  // What it has had is not in its own way.
  auto had = std::pair(std::exchange(actor.host, {}), std::exchange(actor.gpus, {}));
  const auto chosen = choose(actor.request, actor.plugin);
  if (const auto* failure = std::get_if<wire::Failure>(&chosen)) {
    std::tie(actor.host, actor.gpus) = std::move(had);
    return *failure;
  }
  const auto& name = std::get<const Host*>(chosen)->name;
  actor.gpus = free_gpus(name);
  actor.host = name;
  actor.gpus.resize(static_cast<std::size_t>(actor.request.gpus));
  return std::nullopt;
}

bool ActorTable::keeps_place(const UserActor& actor) const {
  // The host may have been lost and have come back, as another.
  const auto* now = host(actor.host);
  return now && !now->draining && !now->lacks.contains(actor.plugin) &&
         free_cores(now->name) > -1e-9 && std::ranges::all_of(actor.gpus, [&](std::int32_t gpu) {
           return std::ranges::find(now->gpus, gpu) != now->gpus.end();
         });
}

bool ActorTable::fits(const Host& host, const wire::SpawnActor& request) const {
  return free_cores(host.name) + 1e-9 >= request.cores &&
         free_gpus(host.name).size() >= static_cast<std::size_t>(request.gpus);
}

std::size_t ActorTable::count_on(const std::string& host, const std::string& group) const {
  return static_cast<std::size_t>(std::count_if(actors_.begin(), actors_.end(), [&](const auto& a) {
    return a.second.living() && a.second.host == host &&
           (group.empty() || a.second.request.group == group);
  }));
}

std::variant<const Host*, wire::Failure> ActorTable::choose(const wire::SpawnActor& request,
                                                            const std::string& plugin) const {
  std::vector<const Host*> possible;
  std::string rooms;
  for (const auto& host : hosts_) {
    if (!rooms.empty()) rooms += "; ";
    if (host.draining) {
      rooms += host.name + " is being drained";
      continue;
    }
    if (const auto lack = host.lacks.find(plugin); lack != host.lacks.end()) {
      rooms += host.name + " cannot have it (" + lack->second + ")";
      continue;
    }
    if (fits(host, request)) possible.push_back(&host);
    rooms += fmt::format("{} has {} of {} cores and {} of {} GPUs free", host.name,
                         short_number(free_cores(host.name)), short_number(host.cores),
                         free_gpus(host.name).size(), host.gpus.size());
  }
  if (request.placement == wire::Placement::together) {
    for (const auto& [id, other] : actors_) {
      if (!other.living() || other.request.group != request.group) continue;
      // One that is to leave its host, or has no process there now, holds nobody.
      const auto* at = host(other.host);
      const bool leaves = other.state == UserActorState::restarting || !other.kill_reason.empty();
      if (!at || (at->draining && leaves)) continue;
      std::erase_if(possible, [&](const Host* host) { return host->name != other.host; });
      rooms += "; its group is on " + other.host;
      break;
    }
  }
  if (possible.empty()) {
    return wire::Failure{FailureCode::overloaded,
                         "[spawn] " + request.class_name + " needs " + short_number(request.cores) +
                             (request.cores == 1 ? " core and " : " cores and ") +
                             counted(request.gpus, "GPU") + ": " + rooms};
  }
  const auto crowd = [&](const Host* host) { return count_on(host->name, request.group); };
  const auto less = [&](const Host* a, const Host* b) { return crowd(a) < crowd(b); };
  return request.placement == wire::Placement::spread
             ? *std::min_element(possible.begin(), possible.end(), less)
             : *std::max_element(possible.begin(), possible.end(), less);
}

double ActorTable::free_cores(const std::string& name) const {
  double free = 0;
  for (const auto& host : hosts_) {
    if (host.name == name) free = host.cores;
  }
  for (const auto& [id, actor] : actors_) {
    if (actor.living() && actor.host == name) free -= actor.request.cores;
  }
  return free;
}

std::vector<std::int32_t> ActorTable::free_gpus(const std::string& name) const {
  std::vector<std::int32_t> free;
  for (const auto& host : hosts_) {
    if (host.name == name) free = host.gpus;
  }
  for (const auto& [id, actor] : actors_) {
    if (!actor.living() || actor.host != name) continue;
    for (const auto gpu : actor.gpus)
      std::erase(free, gpu);
  }
  return free;
}

void ActorTable::spawned(UserActorId id, std::uint64_t incarnation, std::uint32_t pid,
                         std::string ticket, std::string keys) {
  auto& actor = actors_.at(id);
  if (actor.state == UserActorState::restarting) ++actor.restarts;
  actor.state = UserActorState::starting;
  actor.incarnation = incarnation;
  actor.pid = pid;
  actor.ticket = std::move(ticket);
  actor.keys = std::move(keys);
  actor.peer = 0;
  actor.kill_reason.clear();
  actor.hung_for = 0;
  actor.construction = {};
}

void ActorTable::created(UserActorId id, std::string endpoint, std::string blob_endpoint) {
  auto& actor = actors_.at(id);
  actor.state = UserActorState::running;
  actor.endpoint = std::move(endpoint);
  actor.blob_endpoint = std::move(blob_endpoint);
}

std::optional<bool> ActorTable::exited(UserActorId id, std::uint64_t incarnation,
                                       std::string cause) {
  auto* actor = find(id);
  if (!actor || !actor->living() || actor->incarnation != incarnation) return std::nullopt;
  // An actor that never came to be has failed for the one who spawned it.
  const bool began = actor->state == UserActorState::running || actor->restarts > 0;
  const bool left = actor->request.max_restarts < 0 ||
                    actor->restarts < static_cast<std::uint64_t>(actor->request.max_restarts);
  actor->cause = std::move(cause);
  actor->pid = 0;
  actor->peer = 0;
  if (began && left && actor->wanted) {
    actor->state = UserActorState::restarting;
    return true;
  }
  actor->state = UserActorState::dead;
  actor->request.arguments = {};
  dead_.push_back(id);
  return false;
}

void ActorTable::forget_oldest() {
  for (; dead_.size() > kept_; dead_.pop_front())
    actors_.erase(dead_.front());
}

UserActor* ActorTable::find(UserActorId id) {
  const auto found = actors_.find(id);
  return found == actors_.end() ? nullptr : &found->second;
}
const UserActor* ActorTable::find(UserActorId id) const {
  const auto found = actors_.find(id);
  return found == actors_.end() ? nullptr : &found->second;
}

UserActor* ActorTable::find(const std::string& name) {
  for (auto& [id, actor] : actors_) {
    if (actor.living() && !name.empty() && actor.request.name == name) return &actor;
  }
  return nullptr;
}

UserActor* ActorTable::by_peer(std::uint64_t peer) {
  for (auto& [id, actor] : actors_) {
    if (peer != 0 && actor.peer == peer) return &actor;
  }
  return nullptr;
}

std::vector<UserActorId> ActorTable::owned_by(const Owner& owner) const {
  std::vector<UserActorId> owned;
  for (const auto& [id, actor] : actors_) {
    if (actor.living() && actor.owner == owner) owned.push_back(id);
  }
  return owned;
}

}  // namespace troupe::user
