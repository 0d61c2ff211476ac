#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/kind.h"
#include "transport/wire/session.h"
#include "troupe/states.h"

namespace troupe {

constexpr bool is_valid(UserActorState state) {
  return state <= UserActorState::dead;
}

}  // namespace troupe

/// Actors of users: what clients and actors ask the controller for, and what the controller tells a
/// host process. The calls themselves go without it: call_messages.h.
namespace troupe::wire {

enum class Placement : std::uint8_t { pack, spread, together };
constexpr bool is_valid(Placement placement) {
  return placement <= Placement::together;
}
const char* to_string(Placement placement);

/// Client or actor → controller. Answered by ActorAddress once the constructor has run, or Failure.
struct SpawnActor {
  static constexpr Kind kKind = Kind::spawn_actor;
  std::string class_name;
  std::uint64_t types = 0;  // hash of the constructor's argument types
  std::string arguments;    // of the constructor, as values
  std::string name;         // "" = none
  bool get_or_create = false;
  bool detached = false;
  std::int32_t gpus = 0;
  double cores = 0;
  Placement placement = Placement::pack;
  std::string group;
  std::int32_t max_restarts = 0;  // -1 = always
  std::uint32_t deadline_ms = 0;
  std::uint32_t hang_after_ms = 0;  // a method without progress for so long hangs; 0 = none does

  template <class Archive>
  void serialize(Archive& ar) {
    ar(class_name, types, arguments, name, get_or_create, detached, gpus, cores, placement, group,
       max_restarts, deadline_ms, hang_after_ms);
  }
};

/// Address at which an actor is called: controller → whoever asked.
struct ActorAddress {
  static constexpr Kind kKind = Kind::actor_address;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::string class_name;
  std::string name;
  std::string endpoint;       // of the actor's process, for calls
  std::string blob_endpoint;  // of the actor's process, for large values
  std::string ticket;         // shown there
  std::string keys;           // CURVE keys of callers, as text; "" = its door asks for none

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, incarnation, class_name, name, endpoint, blob_endpoint, ticket, keys);
  }
};

/// Asks for an actor by id, or by name where id is 0. Answered by ActorAddress once the actor runs;
/// Failure when there is none or it has ended for good. Whoever asks is told of its deaths from
/// then on.
struct FindActor {
  static constexpr Kind kKind = Kind::find_actor;
  std::uint64_t id = 0;
  std::string name;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, name);
  }
};

/// Kills an actor. Answered by Done.
struct KillActor {
  static constexpr Kind kKind = Kind::kill_actor;
  std::uint64_t id = 0;
  bool restart = false;  // runs its constructor again if it has restarts left

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, restart);
  }
};

/// Asks for all users' actors. Answered by ActorList.
struct ListActors {
  static constexpr Kind kKind = Kind::list_actors;
  template <class Archive>
  void serialize(Archive&) {}
};

struct UserActorEntry {
  std::uint64_t id = 0;
  std::string name;
  std::string class_name;
  UserActorState state = UserActorState::starting;
  std::string host;
  std::uint32_t pid = 0;
  bool detached = false;
  std::uint64_t restarts = 0;
  double cores = 0;
  std::vector<std::int32_t> gpus;
  std::string owner;
  std::string cause;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, name, class_name, state, host, pid, detached, restarts, cores, gpus, owner, cause);
  }
};

struct ActorList {
  static constexpr Kind kKind = Kind::actor_list;
  std::vector<UserActorEntry> actors;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actors);
  }
};

/// Asks for the classes of the cluster's plugins. Answered by ClassList.
struct ListClasses {
  static constexpr Kind kKind = Kind::list_classes;
  template <class Archive>
  void serialize(Archive&) {}
};

struct MethodEntry {
  std::string name;
  std::string arguments;
  std::string result;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, arguments, result);
  }
};

struct ClassEntry {
  std::string name;
  std::string arguments;  // of the constructor
  std::uint64_t types = 0;
  bool needs_torch = false;
  std::vector<MethodEntry> methods;
  std::string plugin;
  std::vector<std::string> lacking;  // hosts that cannot have it: "beta: why"

  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, arguments, types, needs_torch, methods, plugin, lacking);
  }
};

struct ClassList {
  static constexpr Kind kKind = Kind::class_list;
  std::vector<ClassEntry> classes;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(classes);
  }
};

/// Asks to be told of an actor's deaths. Answered by Done, or Failure not_found.
struct WatchActor {
  static constexpr Kind kKind = Kind::watch_actor;
  std::uint64_t id = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id);
  }
};

/// Controller → whoever watches.
struct ActorDied {
  static constexpr Kind kKind = Kind::actor_died;
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::string name;
  std::string class_name;
  std::string cause;
  std::int32_t signal = 0;
  std::int32_t exit_code = 0;
  std::string method;
  std::vector<std::string> log;
  bool restarting = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, incarnation, name, class_name, cause, signal, exit_code, method, log, restarting);
  }
};

/// Controller → host process, after its hello. Answered by ActorCreated, or Failure with the
/// constructor's exception.
struct CreateActor {
  static constexpr Kind kKind = Kind::create_actor;
  std::uint64_t id = 0;
  std::string class_name;
  std::uint64_t types = 0;
  std::string arguments;
  std::string name;
  std::uint64_t restarts = 0;
  std::vector<std::int32_t> gpus;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, class_name, types, arguments, name, restarts, gpus);
  }
};

struct ActorCreated {
  static constexpr Kind kKind = Kind::actor_created;
  std::string endpoint;  // endpoint where the actor is called, with the real port
  std::string blob_endpoint;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(endpoint, blob_endpoint);
  }
};

}  // namespace troupe::wire
