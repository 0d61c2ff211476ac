#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "controller/schedule/task_graph.h"

namespace troupe::schedule {

using JobId = std::uint64_t;
using ActorId = std::uint32_t;

/// A mailbox entry for one actor.
struct Issue {
  ActorId actor = 0;
  wire::Command command;
};

/// Merges the task graphs of all running jobs into one total order and says what to send next. A
/// pure state machine: no I/O, no clock. Rules (design §8):
///  - a task is issued only after its predecessors were issued, and to all its members at once;
///  - the receive of a transfer is issued together with its producer, so both ends of an edge agree
///  on the order;
///  - at most `window` unfinished tasks lie at an actor;
///  - among tasks that may go, the job of higher priority, then the older one, then the earlier
///  task goes first.
/// Slots: patch m of a job is in one place at a time, and a producer is issued at most a window
/// ahead. So an actor holds at most max(patches, batch parts) + window + 1 posted receives of a
/// job, whatever happens, and issuing never waits for a slot.
class Dispatcher {
 public:
  explicit Dispatcher(int window) : window_(window) {}

  /// `actor_of_rank[r]` runs the tasks of world rank r.
  void add_job(JobId job, TaskGraph graph, std::vector<ActorId> actor_of_rank, int priority = 0);
  /// Everything that may be issued now, in the total order.
  std::vector<Issue> issue();
  /// A member finished its part. Answers true when with it the whole task is done. Repeats and
  /// tasks that were never issued to that actor change nothing and answer false.
  bool finish(JobId job, std::uint32_t task, ActorId actor);
  /// Stops issuing the job's tasks; what is issued drains.
  void cancel(JobId job);
  /// Forgets the job at once, e.g. because its epoch is over.
  void remove(JobId job);

  bool has(JobId job) const { return jobs_.contains(job); }
  /// Nothing issued is unfinished, and nothing more will be issued.
  bool drained(JobId job) const;
  /// Every task is done.
  bool complete(JobId job) const;
  const Task& task(JobId job, std::uint32_t id) const { return jobs_.at(job).graph.tasks.at(id); }
  const TaskGraph& graph(JobId job) const { return jobs_.at(job).graph; }
  bool is_done(JobId job, std::uint32_t id) const { return jobs_.at(job).progress.at(id).done; }
  int outstanding(ActorId actor) const;
  /// The oldest unfinished task issued to this actor.
  std::optional<std::pair<JobId, std::uint32_t>> current(ActorId actor) const;

 private:
  struct TaskProgress {
    bool issued = false;
    bool done = false;
    std::uint32_t unissued_predecessors = 0;
    std::set<ActorId> waiting_for;  // members that have not finished
  };
  struct Job {
    TaskGraph graph;
    std::vector<ActorId> actor_of_rank;
    std::vector<TaskProgress> progress;
    std::vector<std::vector<std::uint32_t>> successors;
    std::set<std::uint32_t> ready;  // unissued, every predecessor issued
    int priority = 0;
    std::uint64_t age = 0;
    std::uint32_t unfinished_issued = 0;
    std::uint32_t done = 0;
    bool cancelled = false;
  };

  bool has_room(const Job& job, const Task& task) const;
  void issue_task(JobId id, Job& job, std::uint32_t task, std::vector<Issue>& out);
  bool issue_next(JobId id, Job& job, std::vector<Issue>& out);

  int window_;
  std::uint64_t next_age_ = 0;
  std::map<JobId, Job> jobs_;
  std::map<ActorId, std::vector<std::pair<JobId, std::uint32_t>>>
      queues_;  // issued, unfinished, oldest first
};

}  // namespace troupe::schedule
