#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/actor_future.h"
#include "troupe/states.h"

/// Options of a user's actor when it is spawned, and what the cluster reports about it.
namespace troupe {

/// Resources that are reserved for an actor on its host.
struct Resources {
  int gpus = 0;      // whole GPUs, reserved while the actor lives
  double cores = 0;  // 0 = reserves none
};

struct SpawnOptions {
  std::string name = {};  // unique in the cluster while it lives
  bool detached = false;  // outlives the one that spawned it
  Resources resources = {};
  /// Placement: pack (the fullest host that has room), spread (the emptiest host) or together (the
  /// host where the first actor of `group` lives).
  std::string placement = "pack";
  std::string group = {};  // what spread and together look at; "" = all actors
  int max_restarts = 0;    // how often its constructor runs again after a death; -1 = always
  Milliseconds deadline = std::chrono::seconds(30);  // until its constructor has run
  /// A method that goes on for so long without ActorContext::progress() hangs: the actor is killed
  /// and restarts if it may. 0 = it may take for ever.
  Milliseconds hang_after{0};
};

/// Description of one of the cluster's actors, as `list` returns it.
struct UserActorInfo {
  std::uint64_t id = 0;
  std::string name, class_name;
  UserActorState state = UserActorState::starting;
  std::string host;
  std::uint32_t pid = 0;
  bool detached = false;
  std::uint64_t restarts = 0;
  Resources resources;
  std::vector<int> gpus;
  std::string owner;  // "client", "actor 3" or "" when detached
  std::string cause;  // of its last death
};

struct ActorMethodInfo {
  std::string name, arguments, result;  // types as in "int64, list<string>"
};
struct ActorClassInfo {
  std::string name, arguments;  // of the constructor
  bool needs_torch = false;
  std::vector<ActorMethodInfo> methods;
  std::string plugin;                // file
  std::vector<std::string> lacking;  // hosts that cannot have it: "beta: why"
};

/// Report of an actor's death.
struct Death {
  std::uint64_t actor = 0;
  std::string name, class_name;
  std::string cause;  // one line: signal or exit code, method, last log line
  int signal = 0;     // 0 = none
  int exit_code = 0;
  std::string method;            // method that the actor was in; "" = none
  std::vector<std::string> log;  // last lines of the actor's log
  bool restarting = false;       // a new incarnation is on its way
};

}  // namespace troupe
