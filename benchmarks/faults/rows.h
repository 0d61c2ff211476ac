#pragma once
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/soak/soak_cluster.h"
#include "controller/app/cluster.h"
#include "troupe/client.h"

namespace troupe::faults {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model;
  std::string programs;  // folder of troupe, troupe-actor and troupe-host
  std::string plugin;    // with the class Probe of tests/user_actors
  int times = 20;
  int steps = 24;
};

/// One fault: what is measured in seconds since the blow, each as often as it was dealt.
struct Row {
  std::string fault;
  std::vector<std::pair<std::string, std::vector<double>>> seconds;
  int same = -1;  // jobs with the latents of an undisturbed run; -1 = not asked
};

double since(Clock::time_point start);
/// Throws at the deadline of two minutes.
void wait_for(const char* what, const std::function<bool()>& holds);
/// Waits until there are `actors` actors, and none is busy.
void wait_until_whole(Client& client, std::size_t actors);
cluster::ClusterOptions cluster_options(const Options& options, int actors);
/// The exact demo job, latents wanted.
Submission job_of(const Options& options, const Parallelism& degrees, int steps = 0);

struct NamedRow {
  std::string name;
  std::function<Row(const Options&)> measure;
};
/// A job outlives the loss of an actor or of a host.
std::vector<NamedRow> job_rows();
/// A job fails by a loss, or its client vanishes.
std::vector<NamedRow> end_rows();
/// Users' actors.
std::vector<NamedRow> user_rows();

}  // namespace troupe::faults
