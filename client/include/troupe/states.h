#pragma once
#include <array>
#include <cstdint>
#include <ostream>
#include <string>

/// States of jobs and actors, as the C++ API, the wire, the command line and HTTP name them. Only
/// the standard library is needed to include it.
namespace troupe {

/// State of a job. A job ends once: succeeded, failed or cancelled.
enum class JobState : std::uint8_t {
  queued,
  loading,
  running,
  succeeded,
  failed,
  cancelled,
  paused  // nothing more of it is issued until somebody resumes it; last, as the wire has it
};

/// Returns whether a job in this state has ended.
constexpr bool has_ended(JobState state) {
  return state == JobState::succeeded || state == JobState::failed || state == JobState::cancelled;
}

/// Phase of a job, as its progress tells it.
enum class JobPhase : std::uint8_t {
  queued,
  loading,      // weights are read
  text,         // prompts are encoded
  denoising,    // steps are computed
  decoding,     // latents become pictures
  recovering,   // actors were lost, and it is about to go on
  ended,        // its state says how
  unreachable,  // its controller does not answer, and is looked for
};

/// State of one of the cluster's GPU or CPU actors.
enum class ActorState : std::uint8_t {
  starting,
  ready,     // it has no job
  busy,      // it has one job or several
  leaving,   // its link is lost, and its process may still live
  dead,      // its process has ended, and no other has taken its place yet
  draining,  // it gets no new jobs, and leaves when it has none
  drained
};

/// Returns whether an actor in this state computes jobs, now or when one comes.
constexpr bool can_compute(ActorState state) {
  return state == ActorState::ready || state == ActorState::busy;
}

/// State of a user's actor.
enum class UserActorState : std::uint8_t { starting, running, restarting, dead };

/// Returns the state's name: "running".
inline std::string to_string(JobState state) {
  constexpr std::array kNames = {"queued", "loading",   "running", "succeeded",
                                 "failed", "cancelled", "paused"};
  static_assert(kNames.size() == static_cast<std::size_t>(JobState::paused) + 1);
  return kNames.at(static_cast<std::size_t>(state));
}
inline std::string to_string(JobPhase phase) {
  constexpr std::array kNames = {"queued",   "loading",    "text",  "denoising",
                                 "decoding", "recovering", "ended", "unreachable"};
  static_assert(kNames.size() == static_cast<std::size_t>(JobPhase::unreachable) + 1);
  return kNames.at(static_cast<std::size_t>(phase));
}
inline std::string to_string(ActorState state) {
  constexpr std::array kNames = {"starting", "ready",    "busy",   "leaving",
                                 "dead",     "draining", "drained"};
  static_assert(kNames.size() == static_cast<std::size_t>(ActorState::drained) + 1);
  return kNames.at(static_cast<std::size_t>(state));
}
inline std::string to_string(UserActorState state) {
  constexpr std::array kNames = {"starting", "running", "restarting", "dead"};
  static_assert(kNames.size() == static_cast<std::size_t>(UserActorState::dead) + 1);
  return kNames.at(static_cast<std::size_t>(state));
}

inline std::ostream& operator<<(std::ostream& out, JobState state) {
  return out << to_string(state);
}
inline std::ostream& operator<<(std::ostream& out, JobPhase phase) {
  return out << to_string(phase);
}
inline std::ostream& operator<<(std::ostream& out, ActorState state) {
  return out << to_string(state);
}
inline std::ostream& operator<<(std::ostream& out, UserActorState state) {
  return out << to_string(state);
}

}  // namespace troupe
