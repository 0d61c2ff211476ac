#pragma once
#include <chrono>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

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
                                                    std::chrono::milliseconds)>;
/// Runs something on the control thread, with its connection.
using PostToControl = std::function<void(std::function<void(control::Connection&)>)>;

enum class WorkEvent {
  rehearses,
  rehearses_whole,    // a step that takes the whole picture
  rehearses_patches,  // a step patch by patch
  rehearsed,
  posts_receive
};

struct WorkerTools {
  at::Device device;
  std::map<tensor::Backend, std::unique_ptr<tensor::Device>>& doors;
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
  /// The process is to leave: it can compute on its device no more.
  std::function<void(const std::string& why)> retire;
  /// As actors::cache_flushes of the device.
  std::function<std::int64_t()> cache_flushes;
  /// Told of a job's rehearsal and of the receives that are posted for it, for tests. May be empty.
  std::function<void(WorkEvent, std::uint64_t job)> on_event;
};

/// The work loop: one thread that takes the mailbox's letters in order and issues all
/// communication. What fails is told to the controller as a value; the loop goes on.
class Worker {
 public:
  explicit Worker(WorkerTools tools);
  /// Ends after the letter in hand; the mailbox must be closed before.
  ~Worker();

 private:
  /// Seconds of a job's tasks; what the device has done comes in on another thread.
  struct JobTimes {
    std::mutex mutex;
    double busy = 0, waits = 0, text = 0, denoise = 0, decode = 0;

    void add(wire::TaskKind kind, double took, double waited);
    void tell(wire::ActorJobStats& stats);
  };
  struct RunningJob {
    std::unique_ptr<Job> job;
    std::shared_ptr<JobTimes> times = std::make_shared<JobTimes>();
    wire::ActorJobStats stats;
    tensor::Counters counters_before;
    std::map<std::uint32_t, std::uint64_t> sent_before;  // by group
    std::shared_ptr<control::Counters> control_before = std::make_shared<control::Counters>();
    std::chrono::steady_clock::time_point began;
    std::string last_task;                    // "step 5 patch 1"
    int whole_step = -1;                      // the last one whose micro-steps are all done here
    int newest_step = -1;                     // the last one of which any is
    std::set<std::uint32_t> tasks, receives;  // that came, by task
    bool tasks_to_come = true;                // the last micro-step of this actor has not run yet
  };

  void loop();
  void handle(const Letter& letter);
  void load(const wire::Header& header, const wire::LoadStage& load);
  void connect(const wire::Header& header, const wire::ConnectGroups& connect);
  void begin(const wire::BeginJob& begin);
  /// It began in that epoch and has ended.
  bool is_over(std::uint64_t epoch, std::uint64_t job) const;
  void run(const TaskEntry& entry);
  void post_receive(const TaskEntry& entry);
  /// Those that lie ahead of a task and may go before it.
  void post_receives_ahead(const TaskEntry& task);
  /// The task was issued; on a CPU it has been done.
  void note_end(RunningJob& running, const TaskEntry& entry, TaskResult result,
                wire::ClockSpan called, double waited, std::unique_ptr<DeviceMark> began);
  void rehearse_once(const wire::BeginJob& begin, const JobTools& tools);
  /// Whether the allocator's cache was handed back since the last look; then nothing is rehearsed.
  bool forget_after_flush();
  /// True where an error leaves nothing that could be computed here: the process leaves.
  bool retire_after(const std::exception& error);
  void note_event(WorkEvent event, std::uint64_t job) const {
    if (tools_.on_event) tools_.on_event(event, job);
  }
  TaskResult run_task(RunningJob& running, const wire::Command& command);
  void end(const wire::Header& header, const wire::EndJob& end);
  void end_epoch(const wire::Header& header, const wire::AbortEpoch& abort);
  void unload(const wire::Header& header, const wire::Unload& unload);
  void note_task(RunningJob& running, const wire::Command& command);
  // For those who look, between two letters (worker_inspect.cpp).
  void inspect(Inspection& inspection);
  const RunningJob& job_to_look_at(std::uint64_t job) const;
  void look_at(const wire::Header& header, const wire::GetTensors& question);
  void look_at(const wire::Header& header, const wire::GetSlice& question);
  void give_rows(const wire::Header& header, const wire::GetLatentRows& question);
  void render(const wire::Header& header, const wire::RenderLatents& question);
  wire::BlobRef keep_for_looking(const std::string& name, std::string bytes,
                                 std::vector<std::int64_t> shape);
  /// Why a job's calls are not recorded, once for each reason, on standard error.
  void tell_why_plain(const GraphUse& use);
  /// Of a task, or of the job's beginning.
  void report_failure(std::uint64_t epoch, std::uint64_t job, std::optional<std::uint32_t> task,
                      const std::exception& error);
  at::Tensor fetch_init_latents(const wire::BeginJob& begin);
  at::Tensor fetch_boundary(const wire::BeginJob& begin);
  control::BlobBytes fetch_init_image(const wire::BeginJob& begin);

  template <class M>
  void reply(const wire::Header& request, M message) {
    tools_.post([request, message = std::move(message)](control::Connection& connection) {
      connection.reply(request, message);
    });
  }
  template <class M>
  void send(M message) {
    tools_.post([message = std::move(message)](control::Connection& connection) {
      connection.send(message);
    });
  }

  WorkerTools tools_;
  std::map<std::uint64_t, std::unique_ptr<Stage>> stages_;  // by deployment
  std::map<std::uint64_t, RunningJob> jobs_;
  std::set<std::uint64_t> connected_epochs_;
  /// Jobs that began, by epoch: each does so once.
  std::map<std::uint64_t, std::set<std::uint64_t>> begun_;
  std::deque<control::BlobId> looked_at_;
  std::set<std::string> told_why_plain_;
  /// Epochs in which something failed here. Nothing more of them is done: a receive left out would
  /// shift the tensors of all that follow on its edge, so no job may take another one there.
  std::set<std::uint64_t> broken_epochs_;
  std::int64_t cache_flushes_ = 0;  // at the last look
  std::unique_ptr<TaskEnds> ends_;  // null on a CPU
  std::thread thread_;
};

}  // namespace troupe::actors
