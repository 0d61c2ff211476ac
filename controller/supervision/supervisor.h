#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "controller/deployments/deployments.h"
#include "controller/deployments/environment.h"
#include "controller/deployments/members.h"
#include "controller/hosts/process_host.h"
#include "controller/jobs/job_runner.h"

namespace troupe::cluster {

/// Sees to it that every place has a living process: spawns, notices what is lost, hangs or does
/// not start, kills it, and spawns again as a new incarnation. Deployments and jobs are told.
class Supervisor final : public DeploymentListener {
 public:
  struct Options {
    double start_deadline = 120;  // seconds from a spawn to its hello
    double task_deadline = 600;   // seconds without progress of a busy work loop (--task-deadline)
    int max_respawns = -1;        // of each place, once its first process was ready; -1 = no limit
    double kill_patience = 30;    // seconds from a kill after a lost link to the process's end
  };
  struct Tools {
    Environment& environment;
    Members& members;
    Deployments& deployments;
    jobs::JobRunner& runner;
    Options options = {};
  };
  struct Events {
    std::function<void(const std::string&)> note;  // a failure for people to read
    /// A place is given up: its process cannot be started.
    std::function<void(const std::string& why)> on_given_up;
    /// Returns whether the cluster is starting up. Then the first failed start is enough to give
    /// up.
    std::function<bool()> starting_up = [] { return false; };
    /// Writes down what had happened before an actor whose work loop hangs is killed. Answers the
    /// file's path, empty where none was written.
    std::function<std::string(ActorId, const std::string& why)> record_hang =
        [](ActorId, const std::string&) { return std::string(); };
  };

  explicit Supervisor(Tools tools) : tools_(std::move(tools)) {}
  /// Sets who is told. Must be called before the first spawn.
  void listen(Events events) { events_ = std::move(events); }

  /// Begins to look after hangs, twice a second: with the heartbeat's quarter of a second one is
  /// noticed within a second of its deadline.
  void watch();
  /// Fills a place for the first time. Throws what Environment::spawn throws.
  void spawn(ActorId id);
  /// The place's process has said hello.
  void ready(ActorId id);
  /// A link was lost. False when the peer is no actor.
  bool lost(control::PeerId peer, const std::string& why);
  /// A process has ended.
  void exited(ActorId id, std::uint64_t incarnation, const ExitCause& cause);
  void kill(ActorId id, const std::string& why);
  void actor_stuck(ActorId id) override { kill(id, "it did not answer the end of its epoch"); }
  /// Spawns and kills nothing from now on.
  void stop() { stopped_ = true; }

 private:
  void fill_again(ActorId id, const std::string& ended);
  void fill_later(ActorId id, int tries);
  /// Gives up the place of a process that the kernel does not end, so that its device is not free:
  /// once `kill_patience` has passed since it was killed.
  void give_up_if_kept(ActorId id, std::uint64_t incarnation);
  /// Gives up a place of whose end people have been told.
  void give_up(ActorId id, const std::string& why);
  void give_up_noted(ActorId id, const std::string& why);
  void look_for_hangs();
  void kill_hanging(ActorId id);
  /// Returns `why`, and what the actor was doing.
  std::string with_task(ActorId id, const std::string& why) const;

  Tools tools_;
  Events events_;
  bool stopped_ = false;
  std::map<ActorId, std::string> kill_reasons_;
  std::map<ActorId, double> spawned_at_;
  std::map<ActorId, double> seen_idle_;  // when it was last seen without work
};

}  // namespace troupe::cluster
