#pragma once
#include <cstdint>
#include <string>

#include "controller/deployments/members.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "controller/recorder/recorder.h"
#include "transport/control/types.h"

namespace troupe::service {

struct MetricsFacts {
  const cluster::Members& members;
  const jobs::JobTable& table;
  const jobs::JobRunner& runner;
  const recorder::Recorder& recorder;
  control::Counters control;
  control::Counters blobs;
  std::uint64_t turned_away = 0;
  std::string version;
  double uptime_seconds = 0;
};

/// Returns what the controller knows of the cluster, as Prometheus text. The text contains no
/// prompts, ids of jobs or paths: the values of its labels are bounded.
std::string metrics_text(const MetricsFacts& facts);

/// Returns the resident bytes of a process on this host; 0 when they cannot be read. Source:
/// proc(5), statm.
std::uint64_t resident_bytes(std::uint32_t pid);

}  // namespace troupe::service
