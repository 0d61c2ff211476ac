#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "troupe/client.h"

/// Seeing inside a running cluster: what `troupe repl`, `troupe timeline` and `troupe logs` are
/// made of. Only the standard library is needed to include it.
namespace troupe {

/// One entry of an actor's ordered mailbox.
struct MailboxEntry {
  std::string what;       // micro-step, receive, text, decode, load, connect, …
  std::uint64_t job = 0;  // 0 = of no job
  int step = -1;
  int patch = -1;  // -1 = the whole picture
  int part = 0;
};

struct MailboxInfo {
  std::string doing;                  // "job 3 step 5 patch 1"; empty when idle
  double doing_seconds = 0;           // since that began
  std::uint64_t total = 0;            // entries that wait
  std::uint64_t handled = 0;          // entries since the process began
  std::vector<MailboxEntry> entries;  // the first of them, in order
};

struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;
  double mean = 0;  // of the finite values
  double min = 0;
  double max = 0;
  std::uint64_t not_finite = 0;
};

struct TensorsInfo {
  std::string at;  // the job's last task there: "step 5 patch 1"
  std::vector<TensorInfo> tensors;
};

/// Range of one dimension: all of it, [begin, end), or one index, after which the dimension is
/// gone. Negative numbers count from the end.
struct SliceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  bool whole = true;
  bool single = false;
  bool operator==(const SliceRange&) const = default;
};

struct TensorValues {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<double> values;  // row-major
};

/// A job's latents as they are now. The steps are those that the least and the most advanced rows
/// have completed, from 0; -1 = the noise. The two steps differ while a job runs that goes patch by
/// patch.
struct LatentsNow {
  int first_step = -1;
  int last_step = -1;
  Latents latents;
};
struct PictureNow {
  int first_step = -1;
  int last_step = -1;
  std::string png;  // of the first picture, rough
};

struct LogInfo {
  std::uint64_t last = 0;  // number of the newest line; the first ever is 1
  std::vector<std::string> lines;
};

enum class JobAction {
  pause,   // no more micro-steps are issued
  step,    // one more micro-step is issued
  resume,  // all micro-steps are issued again
  until,   // micro-steps up to the end of a step are issued, and then no more
  /// All micro-steps are issued again, until something that the job makes is not finite: then the
  /// job is paused instead of failing, and JobInfo::cause says what is not finite. After `resume`
  /// the job fails with that cause.
  until_not_finite
};
enum class Fault {
  kill,          // SIGKILL
  stop,          // SIGSTOP, and SIGCONT after some seconds
  exception,     // the actor's next task throws
  not_finite,    // its next micro-step meets a NaN
  delay,         // its next task begins some seconds later
  device_error,  // its next task meets an error after which its device is lost to its process
  hold,          // it stands still when it comes to a place in its work, for some seconds at most
  release        // it goes on where it is held, or will not be held
};

/// Place in an actor's work at which it is held: before the phase, step or patch that is named here
/// begins.
struct HoldAt {
  std::string phase = "step";  // one of hold_phases()
  int step = -1;               // of phase "step", from 0; -1 = any
  int patch = -1;              // of phase "step", from 0; -1 = any, and a step of the whole picture
};

/// Returns the phases that HoldAt can name: "loading", "connecting" (to the others of its groups),
/// "beginning" (of a job), "text", "step", "decode" and "ending" (of a job).
std::vector<std::string> hold_phases();

/// A connection for looking. Thread-safe. Every call answers within half a minute; blobs may take
/// longer. Errors as of Client: not_found (no such actor, job, tensor), bad_request, timeout, lost.
class Inspector {
 public:
  /// Same as Client::connect.
  static Result<Inspector> connect(const std::string& endpoint = {},
                                   std::chrono::milliseconds timeout = std::chrono::seconds(5),
                                   const std::string& keys = {}, std::stop_token stop = {});
  Inspector(Inspector&&) noexcept;
  Inspector& operator=(Inspector&&) noexcept;
  ~Inspector();

  /// Series that the cluster's job numbers belong to: in another series the numbers begin again,
  /// and name other jobs. A series outlives the controller where there is a journal, and nothing
  /// else.
  const std::string& job_series() const;
  /// True once the link is lost. It stays lost: every call returns the error `lost`.
  bool lost() const;

  /// Returns an actor's mailbox, at once, also while its work loop is inside a long task.
  Result<MailboxInfo> mailbox(std::uint32_t actor);
  /// Returns the tensors that the job keeps at the actor, looked at between two entries of its
  /// mailbox.
  Result<TensorsInfo> tensors(std::uint32_t actor, std::uint64_t job);
  /// Returns up to 4096 values of one of these tensors.
  Result<TensorValues> slice(std::uint32_t actor, std::uint64_t job, const std::string& name,
                             const std::vector<SliceRange>& ranges);
  Result<LatentsNow> latents(std::uint64_t job);
  Result<PictureNow> picture(std::uint64_t job);

  /// Pauses a job or lets it go on. `step` is used by JobAction::until, from 0.
  Result<std::string> control(std::uint64_t job, JobAction action, int step = 0);
  /// Makes an actor fail or hold. `seconds` is used by stop, delay and hold, `at` by hold. An actor
  /// that is held says so in `doing` of Client::status, and does not count as hanging.
  Result<std::string> inject(std::uint32_t actor, Fault fault, double seconds = 0,
                             const HoldAt& at = {});

  /// Returns the job's task graph and where each task is, as JSON.
  Result<std::string> graph(std::uint64_t job);
  /// Returns JSON of Chrome trace events, which Perfetto opens; job 0 = all jobs that are
  /// remembered.
  Result<std::string> timeline(std::uint64_t job);
  /// Returns flight records of the last failures as JSON; of one job where `job` is not 0.
  Result<std::string> failures(std::uint64_t job = 0);
  /// Returns what actors were doing, after the slice of number `after`, as JSON: {"last": number of
  /// the newest, "now": seconds on the controller's clock, "slices": [{"actor", "job", "kind": text
  /// | step | decode, "step", "patch", "begin", "end"}]}, the newest 4,000 at most.
  Result<std::string> slices(std::uint64_t after);
  /// Returns the cluster's figures as Prometheus' text.
  Result<std::string> metrics();
  /// Returns the hosts' speeds and links that jobs are planned for, and which of them were
  /// measured, as JSON.
  Result<std::string> machine();

  /// Returns lines of the log of an actor's process, or with actor -1 of the controller: the last
  /// `lines` of those after number `after`.
  Result<LogInfo> logs(std::int64_t actor, std::uint64_t after = 0, std::uint32_t lines = 100);

 private:
  struct Impl;
  explicit Inspector(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe
