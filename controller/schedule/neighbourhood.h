#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "controller/schedule/task_graph.h"

namespace troupe::schedule {

/// Seconds that tasks are expected to take: their work times what a unit of it took before, on the
/// same machine (say, the same model on as many actors), for the same kind, stage and mode. Where
/// that is not known yet, what a unit took on the machine in the mean, then a guess that only
/// relates tasks to one another. Pure: measurements come in.
class TaskSpeeds {
  struct Rate {
    double seconds_per_unit = 0;  // 0 = not measured
    void take(double sample);
  };
  struct Entry {
    Rate rate;
    std::shared_ptr<Rate> mean;  // of its machine
  };

 public:
  /// Number of machines that are remembered: those that were asked for last. Classes outlive that.
  static constexpr std::size_t kMachines = 256;

  /// Class of tasks that share a speed.
  using Class = std::shared_ptr<Entry>;
  struct Estimate {
    double seconds = 0;
    bool measured = false;
  };

  Class class_of(std::uint64_t machine, const Task& task);
  static Estimate estimate(const Class& of, double work);
  /// Learns from what a task of this class and work took, in seconds without waits. Anything but a
  /// positive number is passed over.
  static void learn(const Class& of, double work, double seconds);

 private:
  struct Machine {
    std::shared_ptr<Rate> mean = std::make_shared<Rate>();
    std::map<std::tuple<wire::TaskKind, std::int32_t, bool, bool>, Class> classes = {};
    std::uint64_t used = 0;
  };
  std::map<std::uint64_t, Machine> machines_;
  std::uint64_t uses_ = 0;
};

using JobId = std::uint64_t;
using ActorId = std::uint32_t;

/// A mailbox entry for one actor.
struct Issue {
  ActorId actor = 0;
  wire::Command command;
};

/// Limits on how far tasks go out ahead of being run. docs/scheduling.md says why.
struct Limits {
  int window = 6;               // unfinished tasks at an actor, of all jobs
  int job_always = 2;           // unfinished tasks that a job may have there in any case
  double ahead_seconds = 0.05;  // beyond that, how soon a job's task must be expected to start
};

class Neighbourhood;
struct ScheduledActor;
struct ScheduledJob;
struct Team;

/// A task that was issued.
struct QueueEntry {
  ScheduledJob* job = nullptr;
  std::uint32_t task = 0;
  bool operator==(const QueueEntry&) const = default;
};

struct TaskProgress {
  bool issued = false;
  bool done = false;
  std::uint32_t unissued_predecessors = 0;
  std::uint32_t passed = 0;      // times that something less deserving was issued before it
  std::uint32_t members = 0;     // index of the set of ranks, among the job's, that runs it
  std::uint32_t unfinished = 0;  // members that have not finished, once issued
  TaskSpeeds::Class speed;
  std::uint64_t place = 0;     // in the total order
  std::uint64_t forecast = 0;  // the state of the neighbourhood that start and finish are of
  double issued_at = 0;
  double start = 0;
  double cost = 0;
  double finish = 0;
  double measured = 0;  // the longest of its members so far
};

/// Jobs that count together.
struct Share {
  double service = 0;  // seconds × actors
  int jobs = 0;
};

struct ScheduledJob {
  JobId id = 0;
  TaskGraph graph;
  Neighbourhood* neighbourhood = nullptr;
  std::vector<ScheduledActor*> actor_of_rank;
  std::vector<std::vector<std::int32_t>> rank_sets;  // sets of ranks that run its tasks, each once
  std::vector<std::vector<Team*>> teams_of_set;      // teams that each set consists of
  std::vector<TaskProgress> progress;
  std::vector<std::vector<std::uint32_t>> successors;
  std::vector<std::uint32_t> ready;  // unissued, every predecessor issued; in no order
  int priority = 0;
  std::string share_name;
  Share* share = nullptr;
  std::uint64_t age = 0;
  double service = 0;
  std::uint32_t issued = 0;
  std::uint32_t unfinished_issued = 0;
  std::uint32_t done = 0;
  bool cancelled = false;
  bool paused = false;
  std::uint32_t steps_allowed = 0;  // while it is paused: so many more of its tasks
  std::int32_t last_step = -1;      // while it is paused: tasks up to this step, beside these

  /// True when the task may go without being let out by itself.
  bool is_free(std::uint32_t task) const { return !paused || graph.tasks[task].step <= last_step; }
  bool may_go(std::uint32_t task) const {
    return !cancelled && (steps_allowed > 0 || is_free(task));
  }
  const std::vector<Team*>& teams(std::uint32_t task) const {
    return teams_of_set[progress[task].members];
  }
};

struct ScheduledActor {
  ActorId id = 0;
  std::vector<QueueEntry> queue;  // issued, unfinished, oldest first
  double clock = 0;               // when it last finished something
  Team* team = nullptr;
  Neighbourhood* neighbourhood = nullptr;  // null while it has no job
};

/// Actors that are members of exactly the same tasks, of all jobs: the stage of a wide job is one
/// team. What is true of one of them is true of all, but for how far each has come.
struct Team {
  struct Entry {
    QueueEntry what;
    std::uint32_t unfinished = 0;           // number of members by which it is unfinished
    std::vector<ScheduledActor*> finished;  // members that have, in this order
  };

  std::vector<ScheduledActor*> members;
  std::vector<Entry> queue;  // unfinished by any member, oldest first
  /// Members in the order in which they came to the head of the queue. A member that has finished
  /// the head as well may be missing.
  std::vector<ScheduledActor*> arrived;
  std::uint64_t mark = 0;       // for finding common members
  double next_start = 0;        // start of what the members may be given next
  std::uint64_t closed_in = 0;  // the choice in which they are kept free
  double closed_from = 0;       // time from which they are kept free

  /// Unfinished tasks at the member that has most of them, and at the one that has fewest.
  int most() const { return static_cast<int>(queue.size()); }
  int fewest() const;
  /// Unfinished tasks of one job at the member that has most of them.
  int most_of(const ScheduledJob& job) const;
  /// Returns when the last of the members that have not finished the head of the queue came to it.
  double head_reached();
  void push(const QueueEntry& what);
  void finish(const QueueEntry& what, ScheduledActor& member);
};

/// Jobs that share actors, directly or by way of others, and the part of the total order that is
/// theirs: what happens elsewhere changes nothing here. A list scheduler on a virtual clock of its
/// own.
class Neighbourhood {
 public:
  Neighbourhood(const Limits& limits, TaskSpeeds& speeds) : limits_(limits), speeds_(speeds) {}

  const std::vector<ScheduledJob*>& jobs() const { return jobs_; }
  /// Adds a job, with its actors. `arrange` must follow.
  void add(ScheduledJob& job);
  /// Takes all jobs of another neighbourhood in, and sets their times to this one's clock.
  /// `arrange` must follow.
  void absorb(const Neighbourhood& other);
  /// Removes a job; nothing of it is at its actors any more. `arrange` must follow.
  void remove(ScheduledJob& job);
  /// Divides the actors into teams. Jobs that share no actor with the others any more leave: they
  /// are answered as neighbourhoods of their own.
  std::vector<std::unique_ptr<Neighbourhood>> arrange();

  /// Notes that a member, which has this in its queue, finished its part. True when the whole task
  /// is done.
  bool finish(ScheduledActor& actor, const QueueEntry& what, std::optional<double> seconds);
  /// Appends everything that may be issued now, in order.
  void issue(std::vector<Issue>& out);

  bool touched = false;  // something has changed since the last `issue`

 private:
  /// A task all of whose predecessors are issued.
  struct Candidate {
    ScheduledJob* job = nullptr;
    std::uint32_t id = 0;
    const Task* task = nullptr;
    const std::vector<Team*>* teams = nullptr;
    double start = 0;
    double cost = 0;
    double rank_start = 0;  // `start`, alike for those that can start about as early as any
    bool has_room = false;  // at all members
    bool overdue = false;
    bool feeds = false;          // it begins a job for members that have nothing else to begin
    bool within_limits = false;  // the job's limits let it go now
    bool may_go() const { return has_room && within_limits; }
  };

  std::vector<std::vector<ScheduledJob*>> connected_jobs() const;
  void make_teams();
  void fill_queues();
  void forecast(const QueueEntry& entry);
  double free_for(Team& team, const QueueEntry& entry);
  bool gather();
  void expect(Candidate& candidate);
  void rank();
  void find_feeding();
  static bool sort_before(const Candidate& a, const Candidate& b);
  const Candidate* choose();
  bool in_the_way(const Candidate& candidate) const;
  bool shares_marked(const Candidate& candidate) const;
  void mark(const Candidate& candidate);
  void count_passed(const Candidate& chosen);
  void issue_task(const Candidate& chosen, std::vector<Issue>& out);

  const Limits& limits_;
  TaskSpeeds& speeds_;
  double now_ = 0;           // virtual seconds
  std::uint64_t state_ = 1;  // counts what changes forecasts
  std::uint64_t places_ = 0;
  std::uint64_t marks_ = 0;
  std::uint64_t choices_ = 0;
  std::vector<ScheduledJob*> jobs_;
  std::vector<Team> teams_;
  std::vector<Candidate> candidates_;
};

}  // namespace troupe::schedule
