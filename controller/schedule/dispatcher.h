#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "controller/schedule/task_graph.h"
#include "controller/schedule/task_speeds.h"

namespace troupe::schedule {

using JobId = std::uint64_t;
using ActorId = std::uint32_t;

/// A mailbox entry for one actor.
struct Issue {
  ActorId actor = 0;
  wire::Command command;
};

/// How far tasks go out ahead of being run. docs/scheduling.md says why.
struct Limits {
  int window = 6;               // unfinished tasks at an actor, of all jobs
  int job_always = 2;           // of these, what a job may have there in any case
  double ahead_seconds = 0.05;  // beyond that, how soon a job's task must be expected to start
};

/// How a job stands among the others.
struct JobTerms {
  int priority = 0;           // higher goes first
  std::string share = {};     // who it counts for
  std::uint64_t machine = 0;  // jobs with the same one run at the same speeds, e.g. a deployment's
};

/// Merges the task graphs of all running jobs into one total order and says what to send next. A
/// pure state machine: no I/O, no clock; measured seconds come in as events. Rules:
///  - a task is issued only after its predecessors were issued, and to all its members at once;
///  - the receive of a transfer is issued together with its producer, so both ends of an edge agree
///  on the order;
///  - at most `window` unfinished tasks lie at an actor.
/// Within these it is a list scheduler on a virtual clock (dispatch_order.cpp): higher priority
/// first, then what can start earliest and so idles no member, then the share that has had least,
/// then the older job, then the earlier task. What goes later in this order may still go before if
/// it is expected to be out of the way in time.
/// Slots: patch m of a job is in one place at a time, and a producer is issued at most a window
/// ahead. So an actor holds at most max(patches, batch parts) + window + 1 posted receives of a
/// job on an edge, whatever happens, and issuing never waits for a slot.
class Dispatcher {
 public:
  explicit Dispatcher(int window) : Dispatcher(Limits{.window = window}) {}
  explicit Dispatcher(Limits limits) : limits_(limits) {}

  /// `actor_of_rank[r]` runs the tasks of world rank r.
  void add_job(JobId job, TaskGraph graph, std::vector<ActorId> actor_of_rank, JobTerms terms = {});
  /// Everything that may be issued now, in the total order.
  std::vector<Issue> issue();
  /// A member finished its part, after so many seconds without waits where they are known. Answers
  /// true when with it the whole task is done. Repeats and tasks that were never issued to that
  /// actor change nothing and answer false.
  bool finish(JobId job, std::uint32_t task, ActorId actor,
              std::optional<double> seconds = std::nullopt);
  /// Stops issuing the job's tasks; what is issued drains.
  void cancel(JobId job);
  /// Forgets the job at once, e.g. because its epoch is over. It may be added again.
  void remove(JobId job);

  /// Stops issuing the job's tasks until `resume`; what is issued drains. False for an unknown job.
  bool pause(JobId job);
  /// Lets one more task of a paused job out, to all its members. False when it is not paused, or
  /// nothing is left that was not let out already.
  bool step(JobId job);
  bool resume(JobId job);
  bool paused(JobId job) const;

  bool has(JobId job) const { return jobs_.contains(job); }
  /// Nothing issued is unfinished, and nothing more will be issued.
  bool drained(JobId job) const;
  /// Every task is done.
  bool complete(JobId job) const;
  const Task& task(JobId job, std::uint32_t id) const { return jobs_.at(job).graph.tasks.at(id); }
  const TaskGraph& graph(JobId job) const { return jobs_.at(job).graph; }
  bool is_issued(JobId job, std::uint32_t id) const { return jobs_.at(job).progress.at(id).issued; }
  bool is_done(JobId job, std::uint32_t id) const { return jobs_.at(job).progress.at(id).done; }
  int outstanding(ActorId actor) const;
  /// The oldest unfinished task issued to this actor.
  std::optional<std::pair<JobId, std::uint32_t>> current(ActorId actor) const;
  /// All of them, oldest first.
  std::vector<std::pair<JobId, std::uint32_t>> queue(ActorId actor) const;
  /// Seconds × actors that the job's issued tasks take by the estimates.
  double service(JobId job) const { return jobs_.at(job).service; }

 private:
  struct Actor {
    ActorId id = 0;
    std::deque<std::pair<JobId, std::uint32_t>> queue;  // issued, unfinished, oldest first
    double clock = 0;                                   // when it last finished something
    double free = 0;                                    // when its queue drains
    std::uint64_t mark = 0;                             // for finding common members
    double next_start = 0;                              // of what it may be given next
    std::uint64_t closed_in = 0;                        // the choice in which it is kept free
    double closed_from = 0;                             // from when on
  };
  struct TaskProgress {
    bool issued = false;
    bool done = false;
    std::uint32_t unissued_predecessors = 0;
    std::uint32_t passed = 0;  // how often something less deserving was issued before it
    TaskSpeeds::Class speed = 0;
    std::vector<Actor*> waiting_for;  // members that have not finished
    double issued_at = 0;
    double start = 0;
    double cost = 0;
    double finish = 0;
    double measured = 0;  // the longest of its members so far
  };
  struct Share {
    double service = 0;  // seconds × actors
    int jobs = 0;
  };
  struct Job {
    JobId id = 0;
    TaskGraph graph;
    std::vector<Actor*> actor_of_rank;
    std::vector<int> unfinished_at_rank;
    std::vector<TaskProgress> progress;
    std::vector<std::vector<std::uint32_t>> successors;
    std::vector<std::uint32_t> ready;  // unissued, every predecessor issued; in no order
    int priority = 0;
    std::map<std::string, Share>::iterator share;
    std::uint64_t age = 0;
    double service = 0;
    std::uint32_t issued = 0;
    std::uint32_t unfinished_issued = 0;
    std::uint32_t done = 0;
    bool cancelled = false;
    bool paused = false;
    std::uint32_t steps_allowed = 0;  // while it is paused
  };
  /// A task all of whose predecessors are issued.
  struct Candidate {
    Job* job = nullptr;
    std::uint32_t id = 0;
    const Task* task = nullptr;
    double start = 0;
    double cost = 0;
    double rank_start = 0;  // `start`, alike for those that can start about as early as any
    bool overdue = false;
    bool feeds = false;          // it begins a job for members that have nothing else to begin
    bool within_limits = false;  // its job may have it out now
    bool may_go = false;         // that, and all members have room
  };

  void forecast();
  void gather();
  void rank();
  void find_feeding();
  bool sort_before(const Candidate& a, const Candidate& b) const;
  const Candidate* choose();
  bool in_the_way(const Candidate& candidate) const;
  bool shares_marked(const Candidate& candidate) const;
  void mark(const Candidate& candidate);
  void count_passed(const Candidate& chosen);
  void issue_task(const Candidate& chosen, std::vector<Issue>& out);

  Limits limits_;
  TaskSpeeds speeds_;
  std::uint64_t next_age_ = 0;
  double now_ = 0;     // virtual seconds
  bool stale_ = true;  // the forecast is older than the newest event
  std::uint64_t marks_ = 0;
  std::uint64_t choices_ = 0;
  std::map<JobId, Job> jobs_;
  std::map<std::string, Share> shares_;
  std::map<ActorId, Actor> actors_;
  std::vector<std::pair<Job*, std::uint32_t>> in_flight_;  // issued, unfinished, in the total order
  std::vector<Candidate> candidates_;
};

}  // namespace troupe::schedule
