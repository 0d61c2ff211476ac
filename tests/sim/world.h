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

#include "controller/cluster/deployments.h"
#include "controller/cluster/drainer.h"
#include "controller/cluster/outside.h"
#include "controller/cluster/supervisor.h"
#include "controller/jobs/job_runner.h"
#include "controller/journal/journal.h"
#include "controller/journal/memory_store.h"
#include "tests/sim/crossing.h"
#include "tests/sim/door.h"
#include "tests/sim/stage_actor.h"

namespace troupe::sim {

inline const std::string kToken = "secret";

/// What may go wrong in a run; probabilities are of a single event.
struct Faults {
  double kills_per_job = 0;      // SIGKILL of a random process
  double massacres_per_job = 0;  // of four at once
  double slow_loads = 0;         // a checkpoint that takes the better part of a minute
  double late_exits = 0;         // an end that is told seconds after its sockets have closed
  double hangs_per_job = 0;      // a process stops: no heartbeats, no work
  double stalls_per_job = 0;     // heartbeats go on, the work loop does not
  double cuts_per_job = 0;       // a control link breaks, messages under way are lost
  double drops_per_message = 0;  // one message is lost: the link notices the gap
  double doubles_per_message = 0;
  double failed_spawns = 0;  // fork fails
  double failed_starts = 0;  // a process ends before its hello
  double failed_loads = 0;   // a checkpoint that cannot be read
  double failed_tasks = 0;   // an exception in a task
  double cancels_per_job = 0;
  double restarts_per_job = 0;    // of the controller, which keeps a journal then
  bool empty_places = false;      // a place whose process has ended gets no other one
  bool elastic = false;           // all jobs are
  int hosts = 1;                  // that the places are on
  double drains_per_job = 0;      // of a random place, with or without --now
  double lost_hosts_per_job = 0;  // with their agents
  bool tight_memory = false;      // actors hold one or two deployments at a time
  bool batches = false;           // jobs of few shapes that may compute as one, with latents
  bool two_kinds = false;         // every third place is a GPU
  bool one_mesh = false;          // jobs of one shape that share one pipeline
};

/// A whole cluster in one thread: Supervisor, Deployments, JobRunner and JobTable as they are, with
/// this world as their Outside. Everything that happens follows from the seed.
class World final : public cluster::Outside {
 public:
  World(std::uint64_t seed, Faults faults, int actors);
  ~World() override;

  /// Submits random jobs at random times and plays until all is quiet, or `deadline` virtual
  /// seconds have passed. Throws Violation when something is seen that must not be.
  void play(int jobs, double deadline);

  /// What happened, newest last; for people, when a seed fails.
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
  /// Jobs that ended in a batch, and those that began anew since one had failed.
  std::uint64_t batched() const { return batched_; }
  std::uint64_t retried() const { return retried_; }
  double now() const override { return now_; }

  // Outside:
  std::uint64_t random() override { return rng_() | 1; }
  void after(double seconds, std::function<void()> action) override;
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
  void kill(cluster::ActorId id) override;

  // For the actors:
  /// Told to leave.
  void leaves(std::uint64_t incarnation);
  bool chance(double probability);
  /// Seconds, spread widely around `mean`.
  double some(double mean);
  void note(const std::string& what);
  Crossing& crossing() { return crossing_; }
  /// A stage is loaded beside what the actor holds, in bytes of weights.
  void loaded(cluster::ActorId id, std::uint64_t bytes);
  const Faults& faults() const { return faults_; }
  /// A message of an actor; correlation 0 unless it answers.
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
  /// A control link as the controller knows it.
  struct Peer {
    std::uint64_t incarnation = 0;
    std::uint64_t next_out = 1, next_in = 1;  // sequence numbers
    std::uint64_t seen_out = 0, seen_in = 0;
    double down_until = 0, up_until = 0;  // messages of a direction stay in order
    double last_progress = 0;
  };

  void make_rooms();
  void make_journal();
  /// A client that has not been told of its job hands it in again after a restart.
  void hand_in(wire::JobSpec spec, std::uint64_t key);
  void end_controller();
  void begin_controller();
  void go_on(jobs::JobId id);
  void job_ended(const jobs::JobEntry& job);
  /// Its own pictures and latents came, whoever computed with it.
  void check_results(const jobs::JobEntry& job) const;
  void drain_one();
  void lose_host();
  void submit_one();
  void blow();
  void check_quiet();
  /// What the controller wants an actor to hold is never more than it may.
  void check_memory();
  /// A job has actors of one kind.
  void check_kinds() const;
  void draw_limits();
  void hello(cluster::ActorId id, std::uint64_t incarnation);
  void deliver_up(control::PeerId peer, std::uint64_t sequence, std::uint64_t correlation,
                  const std::string& frame);
  void lose(control::PeerId peer, const std::string& why);
  void fail_calls(control::PeerId peer);
  void end_process(std::uint64_t incarnation, int signal);
  control::PeerId peer_of(std::uint64_t incarnation) const;
  std::optional<std::uint64_t> any_process();

  std::mt19937_64 rng_;
  Faults faults_;
  double now_ = 0;
  std::uint64_t next_event_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::string> notes_;

  Crossing crossing_;
  std::map<std::uint64_t, std::unique_ptr<StageActor>> processes_;  // by incarnation
  std::map<control::PeerId, Peer> peers_;
  std::map<std::uint64_t, Call> calls_;  // by correlation
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
  std::map<cluster::ActorId, std::uint64_t> limits_;  // bytes; empty = none
  std::optional<plan::Plan> mesh_;                    // of all jobs, where they share one
  std::uint64_t most_residents_ = 0;
  std::uint64_t loads_ = 0;
  std::uint64_t batched_ = 0;
  std::uint64_t retried_ = 0;

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
