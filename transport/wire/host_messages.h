#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/kind.h"

namespace troupe::wire {

/// controller → node agent: start an actor's process on your host. Answered by ProcessStarted or
/// Failure. Endpoints are those that the agent itself has reached the controller by.
struct StartProcess {
  static constexpr Kind kKind = Kind::start_process;
  std::uint32_t actor = 0;
  std::uint64_t incarnation = 0;
  std::string device;  // cpu | cuda:N
  std::int32_t threads = 1;
  std::string token;  // of the cluster
  std::string keys;   // CURVE, as text; "" = the controller asks for none

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, incarnation, device, threads, token, keys);
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
  std::uint32_t actor = 0;
  std::uint64_t incarnation = 0;  // 0 = whichever there is
  std::int32_t signal = 0;
  std::string why;  // of SIGKILL: for its log; "" = nothing is said there

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, incarnation, signal, why);
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
  std::uint32_t actor = 0;
  std::uint64_t incarnation = 0;
  bool by_signal = false;
  std::int32_t number = 0;  // signal or exit code
  bool core = false;
  std::vector<std::string> log;  // its last lines

  template <class Archive>
  void serialize(Archive& ar) {
    ar(actor, incarnation, by_signal, number, core, log);
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
