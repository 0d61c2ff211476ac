#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/choices.h"
#include "transport/control/peer.h"
#include "troupe/states.h"

namespace troupe::cluster {

using ActorId = std::uint32_t;

/// Bytes that may be held where no limit is known: nothing is too much.
inline constexpr std::uint64_t kNoLimit = std::numeric_limits<std::uint64_t>::max();

/// One actor of the cluster: a place that incarnations of a process fill one after another.
struct Actor {
  ActorId id = 0;
  ActorState state = ActorState::starting;
  std::uint64_t incarnation = 0;  // of the process that fills the place now
  control::PeerId peer = 0;       // while ready
  std::uint32_t pid = 0;
  std::string host;
  bool remote = false;  // another host than the controller's
  std::string device;
  std::int32_t local_rank = 0;
  std::uint64_t restarts = 0;
  std::uint32_t failed_starts = 0;               // in a row, without a hello
  std::map<std::string, std::string> addresses;  // tensor-plane address by backend name
  std::set<std::uint64_t> jobs;                  // jobs that have the actor now
  std::map<std::uint64_t, std::int32_t> parts;  // deployments that it keeps a part of, and its rank
  std::set<std::uint64_t> leaving_epochs;       // epochs that it was told to end, unanswered
  std::optional<std::uint64_t> memory_limit;    // bytes of its jobs and models, where known
  std::string last_cause;                       // why its last process ended
  bool draining = false;                        // it gets no new jobs and leaves when it has none
  bool evicted = false;                         // draining, and its jobs go on elsewhere
  bool closed = false;                          // no process will fill the place again
  bool held = false;                            // it stands still where a hold was injected

  DeviceKind device_kind() const {
    return parse_choice<DeviceKind>(device.substr(0, device.find(':'))).value_or(DeviceKind::cpu);
  }
  std::uint64_t may_hold() const { return memory_limit.value_or(kNoLimit); }
  /// True while the actor, or the next process in its place, goes on serving those whose jobs it
  /// has.
  bool lasting() const { return !closed && !evicted; }
  /// True when the actor takes new jobs, or will once it has started.
  bool usable() const {
    return (state == ActorState::starting || state == ActorState::ready) && accepts_jobs();
  }
  /// True when the place takes new jobs, whichever process fills it.
  bool accepts_jobs() const { return lasting() && !draining; }
  /// Returns the state as people are told it: of a place that leaves "draining", then "drained".
  ActorState shown_state() const {
    if (draining) return state == ActorState::dead ? ActorState::drained : ActorState::draining;
    return state;
  }
};

/// Table of all actors of the cluster. It is pure: what happens comes in as calls, and nothing is
/// sent or timed here. It alone changes an actor.
class Members {
 public:
  /// `token`: shown by a process of this cluster in its hello. `model_plugins`: contents_text of
  /// both halves of each model plugin that this process has open, by name.
  explicit Members(std::string token, std::map<std::string, std::string> model_plugins = {})
      : token_(std::move(token)), model_plugins_(std::move(model_plugins)) {}

  const Actor& add(const std::string& host, const std::string& device, bool remote = false);
  /// Returns places of other hosts that no process will fill and that keep nothing, but for the
  /// last `kept` of them, by their numbers: of hosts that come and go under ever new names not all
  /// are listed for ever.
  std::vector<ActorId> forgettable(const std::function<bool(const std::string& host)>& is_here,
                                   std::size_t kept) const;
  /// Makes such a place one of this host's, the same as one that is added.
  void move(ActorId id, const std::string& host, const std::string& device);
  /// "actor 3", with more than one host "actor 3 on NAME".
  std::string name_of(ActorId id) const;
  const Actor& at(ActorId id) const { return actors_.at(id); }
  const std::map<ActorId, Actor>& all() const { return actors_; }

  /// A new process fills the place.
  void spawned(ActorId id, std::uint64_t incarnation, std::uint32_t pid);
  /// The process id of a process on another host, which is known later than its start. Ignored when
  /// another process fills the place by now.
  void runs_as(ActorId id, std::uint64_t incarnation, std::uint32_t pid);
  /// A process is to be spawned a little later. Until then the place counts as starting, and nobody
  /// has its incarnation, which is a new random number.
  void spawn_later(ActorId id, std::uint64_t incarnation);
  /// No process could be spawned.
  void start_failed(ActorId id) { actors_.at(id).state = ActorState::dead; }
  /// Checks a hello of an actor: nothing when it is the process that fills the place, else why it
  /// is refused (fencing).
  std::optional<std::string> hello(const control::PeerInfo& peer);
  /// Returns why the peer is none of the processes that fill the places now; nothing when it is
  /// one.
  std::optional<std::string> stranger(const control::PeerInfo& peer) const;
  /// Returns whether some actor's newest process has this incarnation.
  bool has_process(std::uint64_t incarnation) const;
  /// Records that the peer's link is gone: its actor gets nothing more to do. Null when the peer is
  /// no actor.
  const Actor* lost(control::PeerId peer);
  /// True when that process fills the place and its end was not told yet.
  bool fills(ActorId id, std::uint64_t incarnation) const;
  /// The process is gone. False when it does not fill the place, or that was told before.
  bool exited(ActorId id, std::uint64_t incarnation, const std::string& cause);

  /// The place gets no new jobs, and its actor leaves when it has none.
  void drain(ActorId id) { actors_.at(id).draining = true; }
  /// The jobs of a place that is being drained go on elsewhere.
  void evict(ActorId id) { actors_.at(id).evicted = actors_.at(id).draining; }
  /// No process will fill the place again.
  void close(ActorId id) { actors_.at(id).closed = true; }
  /// All places of a host that is gone are closed, with that cause.
  void host_lost(const std::string& host, const std::string& cause);
  /// A closed or drained place takes jobs again: its host is back.
  void reopen(ActorId id);
  /// "cpu", "cuda:1": the device on its host that the place's processes get.
  void use_device(ActorId id, const std::string& device) { actors_.at(id).device = device; }
  /// Bytes that its jobs and models may take; nothing where no limit is known.
  void limit_memory(ActorId id, std::optional<std::uint64_t> bytes) {
    actors_.at(id).memory_limit = bytes;
  }

  /// The actor keeps that rank's part of a deployment.
  void keep_part(ActorId id, std::uint64_t deployment, std::int32_t rank) {
    actors_.at(id).parts[deployment] = rank;
  }
  /// Drops the actor's part of the deployment. False when the actor did not keep one.
  bool drop_part(ActorId id, std::uint64_t deployment) {
    return actors_.at(id).parts.erase(deployment) > 0;
  }
  /// Notes that the actor is told to end an epoch; `left_epoch`, that it has answered that it did.
  void leave_epoch(ActorId id, std::uint64_t epoch) { actors_.at(id).leaving_epochs.insert(epoch); }
  void left_epoch(ActorId id, std::uint64_t epoch) { actors_.at(id).leaving_epochs.erase(epoch); }

  /// Notes that the actor is held by an injected hold, or goes on.
  void hold(ActorId id, bool held) { actors_.at(id).held = held; }

  /// Returns the peer's actor; null when the peer is no actor.
  const Actor* by_peer(control::PeerId peer) const;
  /// Ready actors without a job, and done with what they did before.
  std::vector<ActorId> idle() const;
  bool is_idle(ActorId id) const;
  /// Gives these actors to a job; `take_back` ends that.
  void give(std::uint64_t job, const std::vector<ActorId>& actors);
  void take_back(std::uint64_t job);
  /// Gives the job another actor in the place of `old`.
  void replace(std::uint64_t job, ActorId old, ActorId by);
  std::size_t ready_count() const;
  /// Actors that are ready or may become so.
  std::size_t living_count() const;
  /// Memory limits, in bytes, of the actors that take jobs, least first, each with the number of
  /// actors that may hold at least so much. One of 0 bytes where no actor's limit is known; actors
  /// that may hold nothing count as 1 byte.
  std::vector<std::pair<std::uint64_t, int>> memory_steps() const;

 private:
  /// Nine tenths of what the actor's process found free, divided over the host's places, or over
  /// those on its GPU, and no less than these have: perhaps 0. Nothing where the hello does not
  /// say.
  std::optional<std::uint64_t> share_of_memory(const Actor& actor, const wire::Hello& hello) const;

  Actor empty_place(ActorId id, const std::string& host, const std::string& device,
                    bool remote) const;
  /// Sets the actor's peer; 0 = it has none any more.
  void set_peer(Actor& actor, control::PeerId peer);

  std::string token_;
  std::map<std::string, std::string> model_plugins_;
  std::map<ActorId, Actor> actors_;
  std::unordered_map<control::PeerId, ActorId> by_peer_;
};

}  // namespace troupe::cluster
