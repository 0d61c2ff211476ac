#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "controller/deployments/deployments.h"
#include "controller/deployments/environment.h"
#include "controller/jobs/job_runner.h"
#include "controller/journal/journal.h"
#include "controller/journal/memory_store.h"
#include "controller/supervision/drainer.h"
#include "controller/supervision/supervisor.h"
#include "tests/sim/cable.h"
#include "tests/sim/crossing.h"
#include "tests/sim/door.h"
#include "tests/sim/faults.h"
#include "tests/sim/stage_actor.h"

namespace troupe::sim {

inline const std::string kToken = "secret";

inline constexpr double kSilence = 5;  // seconds after which a link is lost

/// Counts of what the links, and the rooms behind them, met.
struct LinkCounts {
  std::uint64_t duplicates = 0, gaps = 0, strangers = 0;  // by control::Link, and of lost links
  std::uint64_t echoes = 0, ghosts = 0;                   // that changed nothing
};

/// A whole cluster in one thread: Supervisor, Deployments, JobRunner and JobTable as they are, with
/// this world as their Environment. Everything that happens follows from the seed.
class World final : public cluster::Environment, public jobs::JobListener {
 public:
  World(std::uint64_t seed, Faults faults, int actors);
  ~World() override;

  /// Submits random jobs at random times and plays until all is quiet, or `deadline` virtual
  /// seconds have passed. Throws Violation when something is seen that must not be.
  void play(int jobs, double deadline);

  /// Returns what happened, newest last; for people, when a seed fails.
  std::string trace(std::size_t lines) const;
  const jobs::JobTable& table() const { return table_; }
  std::uint64_t deaths() const { return deaths_; }
  /// Actors that do work.
  std::size_t living() const { return members_.living_count(); }
  std::uint64_t recoveries() const { return recoveries_; }
  std::uint64_t restarts() const { return restarts_; }
  /// Deployments that an actor kept at once, at most.
  std::uint64_t most_residents() const { return most_residents_; }
  std::uint64_t loads() const { return loads_; }
  /// Times that an actor was told that its text encoders go, and had some.
  std::uint64_t given_up() const { return encoders_given_up_; }
  /// Jobs that ended in a batch, and those that began anew since one had failed.
  std::uint64_t batched() const { return batched_; }
  std::uint64_t retried() const { return retried_; }
  std::uint64_t met() const { return met_; }
  const LinkCounts& link_counts() const { return link_counts_; }
  double now() const override { return now_; }

  // Environment:
  std::uint64_t random() override { return rng_() | 1; }
  void after(double seconds, std::function<void()> action) override;
  void at(double when, std::function<void()> action);
  bool send_frame(control::PeerId peer, std::string frame) override;
  void request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                     control::ReplyHandler handler) override;
  void drop(control::PeerId peer, const std::string& why) override;
  std::optional<double> last_progress(control::PeerId peer) const override;
  void fetch_blob(std::uint64_t incarnation, const wire::BlobRef& blob,
                  control::Milliseconds deadline, control::BlobHandler handler) override;
  control::BlobId keep_blob(control::BlobBytes bytes) override;
  void drop_blob(control::BlobId id) override;
  std::uint32_t spawn(const cluster::Actor& place, std::uint64_t incarnation) override;
  void kill(cluster::ActorId id, const std::string& why) override;

  // For the actors:
  /// Tells a process to leave.
  void leaves(std::uint64_t incarnation);
  bool chance(double probability);
  /// Seconds, spread widely around `mean`.
  double some(double mean);
  void note(const std::string& what);
  Crossing& crossing() { return crossing_; }
  void loaded() { ++loads_; }
  /// Sets how many bytes of weights an actor holds from now on, text encoders that stay among them.
  void holds(cluster::ActorId id, std::uint64_t bytes) const;
  void encoders_given_up() { ++encoders_given_up_; }
  const Faults& faults() const { return faults_; }
  /// Takes a message of an actor; correlation 0 unless it answers.
  void from_actor(std::uint64_t incarnation, std::uint64_t correlation, std::string frame);
  std::optional<std::string> held_blob(control::BlobId id) const;

 private:
  struct Event {
    double when;
    std::uint64_t order;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };
  struct Call {
    control::PeerId peer;
    control::ReplyHandler handler;
  };
  void make_rooms();
  void make_journal();
  /// Hands in a job again after a restart, for a client that has not been told of it.
  void hand_in(wire::JobSpec spec, std::uint64_t key);
  void end_controller();
  void begin_controller();
  void go_on(jobs::JobId id);
  // Of JobListener:
  void progress(const jobs::JobEntry& job, const wire::JobProgress& progress) override;
  void finished(jobs::JobEntry& job) override;
  void boundary(const jobs::JobEntry& job) override;
  /// Checks that the job's own pictures and latents came, whoever computed with it.
  void check_results(const jobs::JobEntry& job) const;
  void drain_one();
  void lose_host();
  void submit_one();
  /// Lets a paused job go on every now and then, or lets it fail.
  void let_go(jobs::JobId id);
  void blow();
  void check_quiet();
  /// Checks that the controller never wants an actor to hold more than it may.
  void check_memory();
  /// Checks that a job has actors of one kind.
  void check_kinds() const;
  void draw_limits();
  // Links (links.cpp):
  void hello(cluster::ActorId id, std::uint64_t incarnation);
  /// Takes a hello that arrives, for the first time or once more.
  void greet(const CablePtr& cable);
  void carry(const CablePtr& cable, bool up, std::string frame);
  void beat(const CablePtr& cable, bool up);
  void arrive_up(const CablePtr& cable, const std::string& frame);
  void arrive_down(const CablePtr& cable, const std::string& frame);
  /// Ends a link of which one end has heard nothing for too long.
  void silence(const CablePtr& cable, bool up);
  void cut(const CablePtr& cable);
  /// Forgets a peer as control::Server does: out of its tables at once, and those who ask are told
  /// in a later turn.
  CablePtr forget(control::PeerId peer);
  void lose(control::PeerId peer, const std::string& why);
  // What must change nothing (ghosts.cpp):
  /// Hands an actor a message that has passed the numbers of its link.
  void hand(cluster::ActorId id, const std::string& frame);
  /// Returns whether both this epoch of an actor and the job still go on at the controller.
  bool goes_on(cluster::ActorId id, std::uint64_t epoch, jobs::JobId job) const;
  void echo(cluster::ActorId id, const std::string& frame);
  /// Repeats events of a process that has died, and whose end was told.
  void haunt(const CablePtr& cable);
  void changes_nothing(const std::string& what, const std::function<void()>& action);
  std::string state_text() const;
  std::string token() const { return kToken + std::to_string(life_); }
  void fail_calls(control::PeerId peer);
  void end_process(std::uint64_t incarnation, int signal);
  /// Makes a process fall silent: nothing comes from it any more; the controller notices.
  void fall_silent(std::uint64_t incarnation);
  std::optional<std::uint64_t> any_process();

  std::mt19937_64 rng_;
  Faults faults_;
  double now_ = 0;
  std::uint64_t next_event_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::string> notes_;

  Crossing crossing_;
  std::map<std::uint64_t, std::unique_ptr<StageActor>> processes_;  // by incarnation
  std::map<std::uint64_t, CablePtr> cables_;   // of living processes, by incarnation
  std::map<control::PeerId, CablePtr> peers_;  // that the controller knows
  std::map<std::uint64_t, Call> calls_;        // by correlation
  std::map<control::BlobId, std::string> blobs_;
  control::PeerId next_peer_ = 2;
  std::uint64_t next_call_ = 1;
  std::uint64_t deaths_ = 0;
  std::uint64_t recoveries_ = 0;
  std::map<jobs::JobId, int> ends_;  // told to watchers
  int refused_ = 0;

  journal::MemoryStore store_;
  double write_until_ = 0;
  std::map<std::uint64_t, wire::JobSpec> asked_;  // by key: handed in, not answered yet
  std::set<std::uint64_t> accepted_;
  std::set<std::uint64_t> turned_away_;
  std::set<jobs::JobId> journaled_ends_;
  std::uint64_t restarts_ = 0;
  std::uint64_t life_ = 1;  // of the controller
  LinkCounts link_counts_;
  std::map<cluster::ActorId, std::uint64_t> limits_;  // bytes; empty = none
  std::optional<plan::Plan> mesh_;                    // of all jobs, where they share one
  std::uint64_t most_residents_ = 0;
  std::uint64_t loads_ = 0, encoders_given_up_ = 0;
  std::uint64_t batched_ = 0;
  std::uint64_t retried_ = 0;
  std::uint64_t met_ = 0;  // jobs that stood still for a NaN

  // Of the controller:
  int places_;
  std::unique_ptr<Door> door_;
  cluster::Members members_;
  jobs::JobTable table_;
  std::unique_ptr<journal::Journal> journal_;  // where it may be restarted
  std::unique_ptr<cluster::Deployments> deployments_;
  std::unique_ptr<jobs::JobRunner> runner_;
  std::unique_ptr<cluster::Supervisor> supervisor_;
  std::unique_ptr<cluster::Drainer> drainer_;
};

}  // namespace troupe::sim
