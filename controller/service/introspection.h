#pragma once
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/files.h"
#include "controller/deployments/environment.h"
#include "controller/deployments/members.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "controller/plan/machine.h"
#include "controller/recorder/recorder.h"
#include "controller/service/side_thread.h"
#include "transport/control/server.h"
#include "transport/wire/inspect_messages.h"
#include "transport/wire/tensor_messages.h"

namespace troupe::service {

using cluster::Asker;

/// Serves those who look inside, and those who pause and break things. Answers from what the
/// recorder remembers, or asks the actors.
class Introspection {
 public:
  struct Tools {
    control::Server& server;
    cluster::Environment& environment;
    const cluster::Members& members;
    jobs::JobTable& table;
    jobs::JobRunner& runner;
    recorder::Recorder& recorder;
    /// Sends a signal to an actor's process; false when there is none.
    std::function<bool(cluster::ActorId, int signal)> signal;
    /// Returns what an actor's processes have written: lines after a number, the last so many of
    /// them.
    std::function<wire::LogLines(cluster::ActorId, std::uint64_t after, std::size_t lines)> lines;
    std::string host;
    std::uint32_t pid = 0;
    std::string log_folder;  // of flight records; empty = they are kept in memory only
    std::function<plan::Machine()> machine = {};        // what jobs are planned for
    std::function<void(const std::string&)> note = {};  // a failure for people to read
    std::function<std::string()> metrics = {};          // metrics as metrics_text makes them
    /// Writes a flight record, on a thread of its own, as write_whole does.
    std::function<std::string(const std::filesystem::path&, std::string_view)> write =
        [](const auto& path, auto text) { return write_whole(path, text); };
  };

  explicit Introspection(Tools tools)
      : tools_(std::move(tools)),
        thread_([&environment = tools_.environment](SideThread::OnLoop action) {
          environment.post(std::move(action));
        }) {}

  /// Each answers a request, sooner or later.
  void handle(const Asker& asker, const wire::ControlJob& order);
  void handle(const Asker& asker, const wire::GetDocument& question);
  void handle(const Asker& asker, const wire::GetLogs& question);
  void handle(const Asker& asker, const wire::GetMailbox& question);
  void handle(const Asker& asker, wire::GetTensors question);
  void handle(const Asker& asker, wire::GetSlice question);
  void handle(const Asker& asker, const wire::GetLatents& question);
  void handle(const Asker& asker, const wire::InjectFault& fault);
  /// Reads the clock of an actor whose process is here, now and every few seconds.
  void actor_ready(cluster::ActorId actor);
  /// Writes down what had happened before a job ends failed, or before a batch lets its jobs begin
  /// anew. Returns the file's path, empty where there will be no file. The disk has a tenth of a
  /// second for it; where it takes longer, the file comes later, or a note why it does not.
  std::string record_failure(jobs::JobId job, const std::string& failure);
  /// Same as record_failure, but for an actor that hangs and is about to be killed for it. Its job
  /// may outlive that.
  std::string record_hang(cluster::ActorId actor, const std::string& why);

 private:
  /// Deadline for an actor's answer; longer than an actor makes its asker wait.
  static constexpr control::Milliseconds kActorDeadline{10'000};
  struct Collection;  // of a job's latents
  struct Failed {
    jobs::JobId job = 0;
    std::string name;               // name of a batch
    std::vector<jobs::JobId> jobs;  // jobs whose failure it is
    std::string failure;
    std::string file;                           // path of the record's file, once it is there
    std::shared_ptr<const std::string> record;  // JSON
  };
  /// Keeps the record of that run, in memory and as a file of this name.
  std::string record(jobs::JobId job, jobs::JobId run, const std::string& failure,
                     const std::string& file);
  std::string write(const Failed& failed, const std::filesystem::path& path);

  template <class M>
  void reply(const Asker& asker, const M& message) {
    tools_.server.reply(asker.peer, asker.header, message);
  }
  void refuse(const Asker& asker, wire::FailureCode code, const std::string& why);
  /// Returns the job, if it is there and the asker may see it; else refuses the asker.
  const jobs::JobEntry* job_for(const Asker& asker, jobs::JobId job);
  /// Returns the actor, if it is there and ready; else refuses the asker.
  const cluster::Actor* ready_actor(const Asker& asker, std::uint32_t actor);
  template <class Answer, class M>
  void pass_on(const Asker& asker, const M& message, std::uint32_t actor);

  void ask_holder(const std::shared_ptr<Collection>& collection, cluster::ActorId actor);
  void add_rows(Collection& collection, const wire::LatentRows& rows, const std::string& bytes);
  void collected(const std::shared_ptr<Collection>& collection);
  void render(const std::shared_ptr<Collection>& collection);
  void fail(Collection& collection, const wire::Failure& failure);

  /// Lets the job go on, and pauses it where it has computed `step`.
  void run_until(const Asker& asker, const jobs::JobEntry& job, int step);
  /// Returns the slices after that number as JSON.
  std::string slices(std::uint64_t after) const;
  /// Sends a job's time line. It is written on a thread of its own: a long one takes a while.
  void send_timeline(const Asker& asker, jobs::JobId job);
  /// Returns the failures as JSON. `own_only`: without what happened to other jobs meanwhile.
  std::string failures(jobs::JobId job, bool own_only) const;
  void read_clock(cluster::ActorId actor, std::uint64_t incarnation, int readings);
  /// Holds a blob for the asker to fetch; only the newest few are held.
  wire::BlobRef keep(const std::string& name, std::string bytes,
                     std::vector<std::int64_t> shape = {});
  recorder::Nanoseconds now() const;

  Tools tools_;
  std::deque<Failed> failed_;
  std::deque<wire::BlobRef> kept_;
  std::shared_ptr<int> collecting_ = std::make_shared<int>(0);  // one use for each collection
  std::deque<std::filesystem::path> written_;                   // files of flight records
  std::chrono::steady_clock::time_point waited_{};              // for a disk that took its time
  SideThread thread_;  // last: it ends before the rest goes
};

}  // namespace troupe::service
