#pragma once
#include <array>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/metrics_text.h"
#include "controller/schedule/task_graph.h"
#include "transport/wire/actor_messages.h"
#include "troupe/states.h"

namespace troupe::recorder {

using JobId = std::uint64_t;
using ActorId = std::uint32_t;
/// Time of the controller's monotonic clock.
using Nanoseconds = std::int64_t;

inline Nanoseconds nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}
inline double seconds(Nanoseconds time) {
  return static_cast<double>(time) * 1e-9;
}

/// Times of one actor's part of one task.
struct TaskNote {
  std::uint32_t task = 0;
  ActorId actor = 0;
  Nanoseconds issued = 0;
  std::optional<wire::ClockSpan> ran;  // in the controller's time; nothing while it is not done
  std::vector<wire::ClockSpan> waits;
};

/// One run of a job's tasks, in one epoch. A job that outlived an actor has several.
struct Attempt {
  std::uint64_t epoch = 0;
  Nanoseconds began = 0;
  schedule::TaskGraph graph;
  std::vector<ActorId> actor_of_rank;
  std::deque<TaskNote> notes;  // in the order in which they were issued
  std::uint64_t dropped = 0;   // notes that were forgotten
  /// Notes that are not done, by task and actor: the number of notes that there were before each.
  std::unordered_map<std::uint64_t, std::uint64_t> open = {};
};

struct PhaseNote {
  JobPhase phase = JobPhase::queued;
  Nanoseconds began = 0;
};

struct JobNotes {
  JobId job = 0;
  std::string name;  // name of a batch: "batch 9 (jobs 3, 5)"; none of a job
  std::string prompt;
  std::vector<PhaseNote> phases;  // queued, loading, text, denoising, decoding
  std::deque<Attempt> attempts;
  std::optional<Nanoseconds> ended;
  JobState state = JobState::queued;  // how it has ended, where it has
};

/// Something that happened in the cluster. The last events are kept for a failure's record.
struct Event {
  enum class Kind { job, issue, done, failure, actor, epoch };
  Nanoseconds at = 0;
  Kind kind = Kind::job;
  JobId job = 0;     // 0 = of no job
  std::string name;  // name of a batch, as in its notes
  std::optional<ActorId> actor;
  std::string text;
  std::optional<schedule::TaskName> task = {};  // of issue and done, in place of a text
  std::uint64_t number = 0;  // counts all events but issue and done: what the controller has said

  std::string what() const { return task ? schedule::describe(*task) : text; }
};
const char* to_string(Event::Kind kind);

/// Task that one actor was inside, once the task has ended.
struct Slice {
  std::uint64_t number = 0;  // counts all of them, from 1 on
  ActorId actor = 0;
  JobId job = 0;
  wire::TaskKind kind = wire::TaskKind::micro_step;
  std::int32_t step = 0;
  std::int32_t patch = -1;                  // -1 = the whole picture
  wire::ClockSpan ran;                      // in the controller's time
  std::vector<wire::ClockSpan> waits = {};  // waits for other actors' tensors, inside it
};

/// Totals by kind of task, which only grow.
struct TaskTotals {
  std::uint64_t tasks = 0;
  double seconds = 0;
  double wait_seconds = 0;
};

/// Bytes that jobs have moved, as their actors counted them.
struct ByteTotals {
  std::uint64_t tensors_sent = 0;
  std::uint64_t tensors_received = 0;
  std::map<std::string, std::uint64_t> sent_by_group;  // by kind of group: edge, ring, …
};

/// Texts that text encoders computed, and that they had kept, counted by encoder.
struct PromptTotals {
  std::uint64_t encoded = 0;
  std::uint64_t from_cache = 0;
};

/// Bounds, in seconds, by which jobs' phases are counted.
inline constexpr std::array kPhaseBounds = {0.05, 0.1,  0.25, 0.5,   1.0,   2.5,   5.0,
                                            10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0};

/// The controller's memory of what happened. Bounded: of each job the newest notes, of all jobs the
/// newest ones. A pure structure: times come in, nothing goes out.
class Recorder {
 public:
  struct Limits {
    std::size_t jobs = 64;            // ended jobs; those that have not ended are all remembered
    std::size_t attempts = 8;         // of a job
    std::size_t tasks = 100'000;      // tasks of the graphs of all attempts
    std::size_t notes = 50'000;       // of an attempt
    std::size_t all_notes = 200'000;  // of all jobs
    std::size_t events = 2'000;       // of the cluster
    std::size_t slices = 20'000;      // of the cluster
  };

  Recorder() : Recorder(Limits{}) {}
  explicit Recorder(Limits limits) : limits_(limits) {}

  void submitted(JobId job, const std::string& prompt, Nanoseconds now);
  /// Forgets a submitted job that came to nothing before anybody was told of it.
  void withdrawn(JobId job, const std::string& why, Nanoseconds now);
  /// Notes that jobs begin as one under a number of its own, and this name; `jobs`: "jobs 3, 5".
  void joined(JobId batch, const std::string& name, const std::string& jobs, Nanoseconds now);
  /// Notes that a phase began; the same phase again changes nothing.
  void phase(JobId job, JobPhase phase, Nanoseconds now);
  /// Notes that the job's tasks begin, in this epoch.
  void began(JobId job, std::uint64_t epoch, schedule::TaskGraph graph,
             std::vector<ActorId> actor_of_rank, Nanoseconds now);
  void issued(JobId job, std::uint32_t task, ActorId actor, Nanoseconds now);
  /// Notes that an actor's part of a task is done. Its times are put into the controller's.
  void done(ActorId actor, const wire::TaskDone& done, Nanoseconds now);
  /// Notes that a task failed. `where`: "actor 2, step 3 patch 1 stage 0".
  void failed(JobId job, ActorId actor, const std::string& where, Nanoseconds now);
  void ended(JobId job, JobState state, const std::string& why, Nanoseconds now);
  /// Notes that a batch, whose jobs end by themselves, is over: it is none of the jobs that have
  /// ended.
  void closed(JobId batch, JobState state, const std::string& why, Nanoseconds now);
  /// Adds what an ended job cost at one actor; `names`: of the kinds of its groups, by the group's
  /// id.
  void cost(const wire::ActorJobStats& stats, const std::map<std::uint32_t, std::string>& names);
  /// Notes anything else worth a line: an actor came or went, an epoch began or ended.
  void note(Event::Kind kind, JobId job, std::optional<ActorId> actor, const std::string& text,
            Nanoseconds now);

  /// Takes a reading of an actor's clock, asked for at `sent` and answered at `received`. Of an
  /// incarnation's readings the one with the shortest way counts. Where it may be the same clock as
  /// the controller's, as on the same host, it is taken for that.
  void clock_reading(ActorId actor, std::uint64_t incarnation, Nanoseconds sent,
                     Nanoseconds received, Nanoseconds actors);
  /// Returns what to add to the actor's times; 0 while nothing is known.
  Nanoseconds clock_offset(ActorId actor) const;

  const JobNotes* find(JobId job) const;
  const std::map<JobId, JobNotes>& jobs() const { return jobs_; }
  const std::deque<Event>& events() const { return events_; }
  /// Line of the controller's log, as `troupe logs controller` shows it. `lines` returns those
  /// after number `after`, the last `limit` of them; `last` is told the number of the newest.
  struct LogLine {
    Nanoseconds at = 0;
    std::string text;
  };
  std::vector<LogLine> lines(std::uint64_t after, std::size_t limit, std::uint64_t& last) const;
  /// Returns the newest slices, in the order in which the controller heard of them.
  const std::deque<Slice>& slices() const { return slices_; }
  const std::map<wire::TaskKind, TaskTotals>& totals() const { return totals_; }
  const ByteTotals& byte_totals() const { return bytes_; }
  const PromptTotals& prompt_totals() const { return prompts_; }
  /// Returns the number of jobs that have ended, by state.
  const std::map<JobState, std::uint64_t>& ended_totals() const { return ended_; }
  /// Returns the seconds of jobs that succeeded, from the request to the end.
  const Histogram& job_seconds() const { return job_seconds_; }
  /// Returns the seconds of each of their phases.
  const std::map<JobPhase, Histogram>& phase_seconds() const { return phase_seconds_; }
  /// Returns how often jobs began again after their epoch had ended.
  std::uint64_t recoveries() const { return recoveries_; }

 private:
  struct ClockNote {
    std::uint64_t incarnation = 0;
    Nanoseconds way = 0;
    Nanoseconds offset = 0;
  };
  void keep(Event event);
  JobNotes* get(JobId job);
  Attempt* attempt(JobId job);
  void count_seconds(const JobNotes& notes);
  /// Notes that one more job has ended: the one that ended first goes where there are too many.
  void forget_ended(JobId newest);
  void forget_notes(Attempt& attempt);
  void forget(const Attempt& attempt);
  void forget_graphs(const Attempt& newest);

  Limits limits_;
  std::map<JobId, JobNotes> jobs_;
  std::deque<JobId> ended_jobs_;  // jobs that have ended, in the order of their ends
  std::deque<Event> events_;
  std::deque<Slice> slices_;
  std::uint64_t last_slice_ = 0;
  std::uint64_t said_ = 0;
  std::size_t all_notes_ = 0;
  std::size_t all_tasks_ = 0;
  std::map<wire::TaskKind, TaskTotals> totals_;
  ByteTotals bytes_;
  PromptTotals prompts_;
  std::map<JobState, std::uint64_t> ended_;
  Histogram job_seconds_{kPhaseBounds};
  std::map<JobPhase, Histogram> phase_seconds_;
  std::uint64_t recoveries_ = 0;
  std::map<ActorId, ClockNote> clocks_;
};

/// Returns "job 3", or the batch's name.
std::string name_of(const JobNotes& job);

/// Returns a task's name without its stage: "step 5 patch 1", "step 0", "step 0 part 2", "text",
/// "decode".
std::string slice_name(const schedule::Task& task);

}  // namespace troupe::recorder
