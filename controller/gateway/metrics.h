#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "controller/deployments/members.h"
#include "controller/jobs/job_runner.h"
#include "controller/jobs/job_table.h"
#include "controller/recorder/recorder.h"
#include "transport/control/types.h"

namespace troupe::gateway {

/// Builds the text exposition format of Prometheus, version 0.0.4. Every family once, its samples
/// together.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// A family begins; `counter` names must end with _total. Source: Prometheus' exposition formats.
  MetricsText& counter(const std::string& name, const std::string& help);
  MetricsText& gauge(const std::string& name, const std::string& help);
  /// Its samples: `seconds`'s buckets, sum and count.
  MetricsText& histogram(const std::string& name, const std::string& help);
  MetricsText& sample(const recorder::SecondsHistogram& seconds, const Labels& labels = {});
  /// Of the family that was begun last.
  MetricsText& sample(double value, const Labels& labels = {});

  const std::string& text() const { return text_; }

 private:
  MetricsText& family(const std::string& name, const std::string& help, const char* type);
  void line(const std::string& name, double value, const Labels& labels);

  std::string text_;
  std::string name_;
};

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

/// What the controller knows of the cluster, as Prometheus text. No prompts, ids of jobs or paths
/// are in it: what it is labelled by is bounded.
std::string metrics_text(const MetricsFacts& facts);

/// Resident bytes of a process on this host; 0 when it cannot be read. Source: proc(5), statm.
std::uint64_t resident_bytes(std::uint32_t pid);

}  // namespace troupe::gateway
