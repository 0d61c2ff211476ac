#pragma once
#include "controller/jobs/job_runner.h"

namespace troupe::jobs {

/// Bytes of a cause that are kept: it must fit into messages beside other things.
constexpr std::size_t kLongestCause = 16'000;

/// What came of a batch for one of its jobs.
struct Portion {
  std::map<std::int32_t, wire::BlobRef> pictures;  // by picture of the batch
  std::map<std::int32_t, wire::BlobRef> latents;   // by dp replica
  Interim interim;
};

/// A job, or several as one, between start and end.
struct JobRunner::Run {
  JobId job = 0;
  std::shared_ptr<cluster::Deployment> deployment;  // null while it waits for another one
  /// Counts its beginnings at actors: answers and blobs of an earlier one are nobody's.
  std::uint64_t life = 0;
  bool begun = false;    // actors were told of it
  bool ending = false;   // actors are asked for its figures
  bool closing = false;  // a batch whose jobs are leaving it, all of them
  /// By whom which task was told to be done: once more changes nothing.
  std::set<std::pair<std::uint32_t, cluster::ActorId>> told;
  std::size_t blobs_to_come = 0;
  std::map<std::uint32_t, std::vector<wire::BlobRef>>
      results;  // by decode task, so in the replicas' order
  Interim interim;
  std::map<JobId, Portion> portions;  // of a batch, in the place of results and interim
  /// By step and world rank, until all holders' pieces of a step are here.
  std::map<std::int32_t, std::map<std::int32_t, wire::BoundaryPiece>> pieces;
  std::vector<std::string> warnings;  // of how it went; those of its actors are its jobs'
  std::uint64_t blob_bytes = 0;
  std::map<std::int32_t, int> replicas_past;  // step → dp replicas that completed it
  StepClock clock;
  double began = 0;             // for the first time
  std::int32_t first_step = 0;  // that it began with
  double text_done = 0;
  double denoised = 0;
  double decoded = 0;
  int texts_done = 0;
  std::vector<wire::ActorJobStats> stats;
  std::size_t stats_to_come = 0;
  int losses = 0;  // since it last got a step further
  std::optional<wire::Failure> collateral;
};

}  // namespace troupe::jobs
