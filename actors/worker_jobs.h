#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "actors/inspect.h"
#include "actors/mailbox.h"
#include "actors/stage/group_table.h"
#include "actors/stage/job.h"
#include "actors/stage/progress.h"
#include "actors/stage/stage.h"
#include "actors/stage/task_ends.h"
#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/tensor/backend.h"

namespace troupe::actors {

/// Fetches a blob from the controller; safe to call from the work loop, waits at most until the
/// deadline.
using FetchBlob = std::function<control::BlobResult(std::uint64_t id, std::uint64_t bytes,
                                                    std::chrono::milliseconds,
                                                    const std::function<void()>& tick)>;
/// Runs something on the control thread, with its connection.
using PostToControl = std::function<void(std::function<void(control::Connection&)>)>;

enum class WorkEvent {
  rehearses,
  rehearses_whole,    // a step that takes the whole picture
  rehearses_patches,  // a step patch by patch
  rehearsed,
  posts_receive
};

/// Tools of the work loop; all of them outlive the loop.
struct WorkerTools {
  at::Device device;
  std::map<tensor::Backend, std::unique_ptr<tensor::Device>>& tensor_devices;
  GroupTable& groups;
  WorkProgress& progress;
  Mailbox& mailbox;
  WorkView& view;
  control::BlobStore& blobs;
  FetchBlob fetch_blob;
  PostToControl post;
  std::chrono::milliseconds transfer_deadline;
  bool cuda_graphs = false;
  std::shared_ptr<DeviceClock> clock = nullptr;  // null on a CPU
  bool rehearses = false;                        // jobs, before their receives are posted
  /// Makes the process leave, because it can no longer compute on its device.
  std::function<void(const std::string& why)> retire;
  /// Same as actors::cache_flushes, for this device.
  std::function<std::int64_t()> cache_flushes;
  /// Called at a job's rehearsal and for the receives that are posted for the job, for tests. May
  /// be empty.
  std::function<void(WorkEvent, std::uint64_t job)> on_event;

  /// Returns true, and makes the process leave, if after the error nothing can be computed here any
  /// more.
  bool retire_after(const std::exception& error) const;
  template <class M>
  void reply(const wire::Header& request, M message) const {
    post([request, message = std::move(message)](control::Connection& connection) {
      connection.reply(request, message);
    });
  }
  template <class M>
  void send(M message) const {
    post([message = std::move(message)](control::Connection& connection) {
      connection.send(message);
    });
  }
};

/// Stages of the actor by deployment.
using Stages = std::map<std::uint64_t, std::unique_ptr<Stage>>;

/// Returns the failure that is reported for an error of the work loop.
wire::Failure to_failure(const std::exception& error);

/// Seconds of a job's tasks. Thread-safe: what a device has done comes in on another thread.
class JobTimes {
 public:
  void add(wire::TaskKind kind, double took, double waited);
  void tell(wire::ActorJobStats& stats) const;

 private:
  mutable std::mutex mutex_;
  double busy_ = 0, waits_ = 0, text_ = 0, denoise_ = 0, decode_ = 0;
};

/// A job that has begun here, how far it is, and what was counted when it began.
struct RunningJob {
  std::unique_ptr<StageJob> job;
  std::string last_task;                    // "step 5 patch 1"
  int whole_step = -1;                      // the last one whose micro-steps are all done here
  int newest_step = -1;                     // the last one of which any is
  std::set<std::uint32_t> tasks, receives;  // that came, by task
  bool tasks_to_come = true;                // the last micro-step of this actor has not run yet
  double controller_wait_seconds = 0;       // with an empty mailbox while tasks were to come
  std::shared_ptr<JobTimes> times = std::make_shared<JobTimes>();
  tensor::Counters counters_before = {};
  std::map<std::uint32_t, std::uint64_t> sent_before = {};  // by group
  std::shared_ptr<control::Counters> control_before = std::make_shared<control::Counters>();
};

/// The jobs at this actor: begins them, runs their tasks in order, and ends them. Used by the work
/// loop only.
class WorkerJobs {
 public:
  WorkerJobs(const WorkerTools& tools, Stages& stages);

  void begin(const wire::BeginJob& begin);
  /// Runs a task or posts a receive.
  void run(const TaskEntry& entry);
  /// Returns whether tasks of the epoch are not computed any more: it has ended, or a task of it
  /// has failed here.
  bool skips(std::uint64_t epoch) const;
  /// Ends a job; answers the request with what the job cost.
  void end(const wire::Header& header, const wire::EndJob& end);
  void end_epoch(std::uint64_t epoch);

  /// Notes that the work loop had nothing to do for `seconds`.
  void note_idle(double seconds);
  /// "job 3", or "batch 9 (jobs 3, 5)".
  std::string name_of(std::uint64_t job) const;
  /// Returns the job's epoch; nothing if the job is not here.
  std::optional<std::uint64_t> epoch_of(std::uint64_t job) const;
  /// Throws std::out_of_range if the job is not here.
  const RunningJob& find(std::uint64_t job) const;

 private:
  void run_task(RunningJob& running, const TaskEntry& entry);
  TaskResult call(StageJob& job, const wire::Command& command);
  static TaskResult run(StageJob& job, const wire::Command& command);
  void note_progress(RunningJob& running, const wire::Command& command);
  /// Notes that a task was issued; on a CPU the task is also done.
  void note_end(RunningJob& running, const TaskEntry& entry, TaskResult result,
                wire::ClockSpan called, double waited, std::unique_ptr<DeviceMark> began);
  void post_receive(const TaskEntry& entry);
  /// Posts the receives that lie ahead of a task and may go before it.
  void post_receives_ahead(const TaskEntry& task);
  /// Returns the task's job; null if the job began in that epoch and has ended. Throws if the job
  /// never began.
  RunningJob* job_of(const TaskEntry& entry, const char* what);

  JobInputs fetch_inputs(const wire::BeginJob& begin);
  /// Returns the function that is called while something waits in an epoch: it shows progress, and
  /// throws when the epoch has ended.
  std::function<void()> tick_in(std::uint64_t epoch) const;
  control::BlobBytes fetch_input(std::uint64_t epoch, const std::string& what, control::BlobId id,
                                 std::uint64_t bytes);
  at::Tensor fetch_init_latents(const wire::BeginJob& begin, const spec::ModelSpec& spec);
  at::Tensor fetch_boundary(const wire::BeginJob& begin, const spec::ModelSpec& spec);
  void rehearse_once(const wire::BeginJob& begin, const JobTools& tools);
  /// Forgets all rehearsals if the allocator's cache was handed back since the last call; returns
  /// whether it was.
  bool forget_after_flush();
  /// Prints on standard error the reason why a job's calls are not recorded, once for each reason.
  void tell_why_plain(const GraphUse& use);
  /// Reports that a task, or the job's beginning, has failed.
  void report_failure(std::uint64_t epoch, std::uint64_t job, std::optional<std::uint32_t> task,
                      const std::exception& error);
  /// Handles a value of the current task that is not finite: throws `sentence`, or only reports it
  /// if the job is watched.
  void meet_not_finite(std::uint64_t epoch, std::uint64_t job, const std::string& sentence);
  void note_event(WorkEvent event, std::uint64_t job) const {
    if (tools_.on_event) tools_.on_event(event, job);
  }

  const WorkerTools& tools_;
  Stages& stages_;
  std::map<std::uint64_t, RunningJob> jobs_;
  std::uint32_t task_ = 0;  // number of the task at hand within its job
  /// Jobs that began, by epoch: each job begins only once.
  std::map<std::uint64_t, std::set<std::uint64_t>> begun_;
  std::set<std::string> told_why_plain_;
  /// Epochs in which something failed here. Nothing more of them is done: a receive left out would
  /// shift the tensors of all that follow on its edge, so no job may take another one there.
  std::set<std::uint64_t> broken_epochs_;
  std::int64_t cache_flushes_ = 0;  // when they were last asked for
  std::unique_ptr<TaskEnds> ends_;  // null on a CPU
};

}  // namespace troupe::actors
