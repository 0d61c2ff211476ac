#pragma once
#include "controller/jobs/job_runner.h"

namespace troupe::jobs {

/// A job between its start and its end.
struct JobRunner::Run {
  explicit Run(boost::asio::io_context& io) : cause_timer(io) {}

  JobId job = 0;
  std::shared_ptr<cluster::Deployment> deployment;
  bool begun = false;   // actors were told of it
  bool ending = false;  // actors are asked for its figures
  std::size_t blobs_to_come = 0;
  std::map<std::uint32_t, std::vector<wire::BlobRef>>
      results;  // by decode task, so in the replicas' order
  /// By step and dp replica: previews and latents, until all replicas' parts of a step are here.
  std::map<std::int32_t, std::map<std::int32_t, wire::BlobRef>> interim;
  std::vector<std::string> warnings;
  std::uint64_t blob_bytes = 0;
  std::map<std::int32_t, int> replicas_past;  // step → dp replicas that completed it
  StepClock clock;
  double began = 0;
  double text_done = 0;
  double denoised = 0;
  double decoded = 0;
  int texts_done = 0;
  std::vector<wire::ActorJobStats> stats;
  std::size_t stats_to_come = 0;
  std::optional<wire::Failure> collateral;
  boost::asio::steady_timer cause_timer;
};

}  // namespace troupe::jobs
