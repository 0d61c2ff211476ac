#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "controller/schedule/neighbourhood.h"

namespace troupe::schedule {

/// Priority, share and machine of a job, by which it stands among the others.
struct JobTerms {
  int priority = 0;           // higher goes first
  std::string share = {};     // who it counts for
  std::uint64_t machine = 0;  // jobs with the same one run at the same speeds
};

/// Merges the task graphs of all running jobs into one total order and says what to send next. A
/// pure state machine: no I/O, no clock; measured seconds come in as events. Rules:
///  - a task is issued only after its predecessors were issued, and to all its members at once;
///  - the receive of a transfer is issued together with its producer, so both ends of an edge agree
///  on the order;
///  - at most `window` unfinished tasks lie at an actor.
/// Jobs that share no actor, directly or by way of others, cannot influence each other: their parts
/// of the order are their own (neighbourhood.h), and an event costs what its own part costs.
/// Within the rules each part is a list scheduler on a virtual clock: higher priority first, then
/// what can start earliest and so idles no member, then the share that has had least, then the
/// older job, then the earlier task. What goes later in this order may still go before if it is
/// expected to be out of the way in time. Slots: patch m of a job is in one place at a time, and a
/// producer is issued at most a window ahead. So an actor holds at most max(patches, batch parts) +
/// window + 1 posted receives of a job on an edge, whatever happens, and issuing never waits for a
/// slot.
class Dispatcher {
 public:
  explicit Dispatcher(int window) : Dispatcher(Limits{.window = window}) {}
  explicit Dispatcher(Limits limits) : limits_(limits) {}
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  /// Adds a job. `actor_of_rank[r]` runs the tasks of world rank r.
  void add_job(JobId job, TaskGraph graph, std::vector<ActorId> actor_of_rank, JobTerms terms = {});
  /// Returns everything that may be issued now, in the total order. Looks only where something has
  /// changed.
  std::vector<Issue> issue();
  /// Notes that a member finished its part, after so many seconds without waits where they are
  /// known. Answers true when with it the whole task is done. Repeats and tasks that were never
  /// issued to that actor change nothing and answer false.
  bool finish(JobId job, std::uint32_t task, ActorId actor,
              std::optional<double> seconds = std::nullopt);
  /// Stops issuing the job's tasks; what is issued drains.
  void cancel(JobId job);
  /// Forgets the job at once, e.g. because its epoch is over. It may be added again.
  void remove(JobId job);

  /// Stops issuing the job's tasks until `resume`, but for those up to `last_step`, if any; what is
  /// issued drains. False for an unknown job.
  bool pause(JobId job, int last_step = -1);
  /// Lets one more task of a paused job out, to all its members. False when it is not paused, or
  /// nothing is left that was not let out already.
  bool step(JobId job);
  bool resume(JobId job);
  bool paused(JobId job) const;

  bool has(JobId job) const { return jobs_.contains(job); }
  /// True when nothing issued is unfinished, and nothing more will be issued.
  bool drained(JobId job) const;
  /// True when every task is done.
  bool complete(JobId job) const;
  const Task& task(JobId job, std::uint32_t id) const { return jobs_.at(job).graph.tasks.at(id); }
  const TaskGraph& graph(JobId job) const { return jobs_.at(job).graph; }
  bool is_issued(JobId job, std::uint32_t id) const { return jobs_.at(job).progress.at(id).issued; }
  bool is_done(JobId job, std::uint32_t id) const { return jobs_.at(job).progress.at(id).done; }
  int outstanding(ActorId actor) const;
  /// Returns the oldest unfinished task issued to this actor.
  std::optional<std::pair<JobId, std::uint32_t>> current(ActorId actor) const;
  /// Returns all unfinished tasks issued to this actor, oldest first.
  std::vector<std::pair<JobId, std::uint32_t>> queue(ActorId actor) const;
  /// Returns the seconds × actors that the job's issued tasks take by the estimates.
  double service(JobId job) const { return jobs_.at(job).service; }

 private:
  /// Returns the neighbourhood of these actors' jobs; neighbourhoods that they had apart become
  /// one.
  Neighbourhood& join(const std::vector<ScheduledActor*>& actors);
  void forget(const Neighbourhood* gone);
  /// Notes that something has changed in the neighbourhood.
  void touch(Neighbourhood& neighbourhood);
  ScheduledJob* find(JobId job);
  const ScheduledJob* find(JobId job) const;

  Limits limits_;
  TaskSpeeds speeds_;
  std::uint64_t next_age_ = 0;
  std::map<std::string, Share> shares_;
  std::unordered_map<JobId, ScheduledJob> jobs_;
  std::unordered_map<ActorId, ScheduledActor> actors_;
  std::vector<std::unique_ptr<Neighbourhood>> neighbourhoods_;
  std::vector<Neighbourhood*> touched_;  // since the last `issue`, each once
};

/// One message of mailbox entries to one actor.
struct OutboxMessage {
  ActorId actor = 0;
  wire::RunTasks tasks;
};

/// Makes messages of issued entries, in the order to send them in. What an actor gets keeps the
/// total order: entries are put together only where nothing of another epoch stands between them.
std::vector<OutboxMessage> outbox_messages(const std::vector<Issue>& issued,
                                           const std::function<std::uint64_t(JobId)>& epoch_of);

}  // namespace troupe::schedule
