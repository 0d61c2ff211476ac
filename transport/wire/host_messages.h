#pragma once
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/kind.h"
#include "transport/wire/session.h"

namespace troupe::wire {

/// Owner of a process: an actor (role actor) or a user's actor (role user_actor).
struct ProcessOwner {
  PeerRole role = PeerRole::actor;
  std::uint64_t id = 0;

  auto operator<=>(const ProcessOwner&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(role, id);
  }
};

/// Program of a user's actor: what its process is started with beside what every process is.
struct UserProgram {
  std::string plugin;  // as on the controller's host
  bool torch = false;  // its class needs torch
  std::string ticket;  // ticket that callers must show
  std::string door;    // CURVE keys of its own door, as text; "" = it asks for none
  std::vector<std::int32_t> gpus;
  bool insecure = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(plugin, torch, ticket, door, gpus, insecure);
  }
};

/// controller → node agent: start this process on your host. Answered by ProcessStarted or Failure.
/// The controller's endpoints are those by which the agent itself has reached it.
struct StartProcess {
  static constexpr Kind kKind = Kind::start_process;
  ProcessOwner owner;
  std::uint64_t incarnation = 0;
  std::string token = {};   // the cluster's token, which the process shows in its hello
  std::string keys = {};    // CURVE keys for the controller, as text; "" = it asks for none
  std::string device = {};  // of an actor: cpu | cuda:N
  UserProgram user = {};    // of a user's actor

  template <class Archive>
  void serialize(Archive& ar) {
    ar(owner, incarnation, token, keys, device, user);
  }
};

struct ProcessStarted {
  static constexpr Kind kKind = Kind::process_started;
  std::uint32_t pid = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(pid);
  }
};

/// controller → node agent: the process of this incarnation gets a signal, if it still lives.
struct SignalProcess {
  static constexpr Kind kKind = Kind::signal_process;
  ProcessOwner owner;
  std::uint64_t incarnation = 0;
  std::int32_t signal = 0;
  std::string why = {};  // for SIGKILL: the reason, for the actor's log; "" = nothing is said there

  template <class Archive>
  void serialize(Archive& ar) {
    ar(owner, incarnation, signal, why);
  }
};

/// Node agent → controller: lines that the actor's processes have written, in order.
struct ProcessWrote {
  static constexpr Kind kKind = Kind::process_wrote;
  std::uint32_t actor = 0;
  std::vector<std::string> lines;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, lines);
  }
};

/// Node agent → controller: a process that it started has ended.
struct ProcessEnded {
  static constexpr Kind kKind = Kind::process_ended;
  ProcessOwner owner;
  std::uint64_t incarnation = 0;
  bool by_signal = false;
  std::int32_t number = 0;  // signal or exit code
  bool core = false;
  std::vector<std::string> log = {};  // its last lines
  std::string method = {};            // method that a user's actor was in; "" = none

  template <class Archive>
  void serialize(Archive& ar) {
    ar(owner, incarnation, by_signal, number, core, log, method);
  }
};

/// Client or node agent → controller: these places get no new jobs, and their actors leave when
/// they have none. Answered by Done, or by Failure naming what is not known.
struct DrainPlaces {
  static constexpr Kind kKind = Kind::drain_places;
  std::vector<std::string> places;  // names of hosts, numbers of actors
  bool now = false;                 // running jobs that can go on elsewhere do so at once

  template <class Archive>
  void serialize(Archive& ar) {
    ar(places, now);
  }
};

}  // namespace troupe::wire
