#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log_line.h"
#include "controller/deployments/deployments.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "controller/journal/journal.h"
#include "controller/plan/machine.h"
#include "controller/recorder/recorder.h"
#include "controller/service/job_planner.h"
#include "controller/service/model_reader.h"
#include "transport/control/blob_channel.h"
#include "transport/control/server.h"

namespace troupe::service {

/// Failures of the cluster, for people to read. The last few are in its status, each with the time
/// (UTC) before it.
class FailureLog {
 public:
  /// `now`: seconds. `log` hears of every failure; may be empty.
  FailureLog(recorder::Recorder& recorder, std::function<double()> now,
             std::function<void(const std::string&)> log = {})
      : recorder_(recorder), now_(std::move(now)), log_(std::move(log)) {}

  void note(const std::string& text) {
    if (log_) log_(text);
    recorder_.note(recorder::Event::Kind::failure, 0, std::nullopt, text,
                   recorder::nanoseconds(now_()));
    recent_.push_back(utc_text(std::chrono::system_clock::now()) + " " + text);
    if (recent_.size() > kKept) recent_.erase(recent_.begin());
  }
  const std::vector<std::string>& recent() const { return recent_; }

 private:
  static constexpr std::size_t kKept = 10;

  recorder::Recorder& recorder_;
  std::function<double()> now_;
  std::function<void(const std::string&)> log_;
  std::vector<std::string> recent_;
};

/// Facts of this cluster, for status and for defaults of requests.
struct ClusterFacts {
  std::string version;
  std::string host;
  std::uint32_t pid = 0;
  std::string endpoint;
  std::string model;  // default model folder; may be empty
  DeviceKind device = DeviceKind::cpu;
  double started = 0;
};

/// Objects and limits that the classes of this room work with.
struct Tools {
  boost::asio::io_context& io;
  control::Server& server;
  control::BlobServer& blob_server;
  control::BlobStore& blobs;
  const cluster::Members& members;
  cluster::Deployments& deployments;
  jobs::JobTable& table;
  jobs::JobRunner& runner;
  FailureLog& failures;
  std::function<double()> now;
  std::function<void()> stop;
  ModelReader::Read read_model = {};  // null = from the folder
  AllowedFolders allowed_models = {};
  JobPlanner::Make plan_job = {};          // null = service::plan_job
  journal::Journal* journal = nullptr;     // of the jobs; may be null
  recorder::Recorder* recorder = nullptr;  // remembers what is of note; may be null
  int max_restarts = 3;  // restarts of a controller that a job outlives without a step between
  /// Time that a job waits for its client to come back.
  std::chrono::milliseconds grace = std::chrono::seconds(60);
  /// Time from when a job's inputs are here until it is accepted. A client gives up after 30 s
  /// (client/link.h), and must not find its job running then.
  std::chrono::milliseconds accept_within = std::chrono::seconds(25);
  /// Limits, in bytes, for what jobs begin with (latents, pictures, prompt embeds), on its way here
  /// and of jobs that have not ended: of all jobs, of a client's, and of those that were handed in
  /// on the same behalf.
  struct InputBytes {
    std::uint64_t all = 4ull << 30;
    std::uint64_t of_client = 2ull << 30;
    std::uint64_t on_same_behalf = 1ull << 30;

    /// Limits that are a quarter of this memory at most, in the same proportions.
    static InputBytes within(std::uint64_t memory);
  };
  InputBytes max_input_bytes = {};
  /// Returns the machine that jobs with weights of this type are planned for. Null = a host of this
  /// process's cores that nobody has measured.
  std::function<plan::Machine(WeightChoice weight_dtype)> machine = {};

  recorder::Nanoseconds monotonic() const { return recorder::nanoseconds(now()); }
  /// Returns the machine that the request is planned for.
  plan::Machine machine_for(const ClusterFacts& facts, const wire::ImageRequest& request) const;
};

}  // namespace troupe::service
