#include "tests/process/support/shared_cluster.h"

#include "tests/process/support/connect.h"
#include "tests/process/support/processes.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

constexpr auto kSharedJobDeadline = 600s;

cluster::ClusterOptions options_for(int actors, std::uint64_t memory_limit) {
  cluster::ClusterOptions options;
  options.memory_limit = memory_limit;
  options.actors = actors;
  options.threads_per_actor = 1;
  options.actor_program = TROUPE_BINARY_DIR "/bin/troupe-actor";
  return options;
}

}  // namespace

SharedCluster::SharedCluster(int actors, std::uint64_t memory_limit)
    : cluster_(options_for(actors, memory_limit)), client_(connect_when_ready(cluster_)) {}

JobResult SharedCluster::run(const Submission& submission, Client::OnProgress on_progress,
                             std::chrono::seconds deadline) {
  const auto job = take(client_.submit(submission, std::move(on_progress)), "submit");
  return take(client_.wait(job, deadline), "job " + std::to_string(job));
}

Error SharedCluster::refusal(const Submission& submission) {
  const auto job = client_.submit(submission);
  if (!job) return job.error();
  const auto result = client_.wait(job.value(), kSharedJobDeadline);
  if (result) throw std::runtime_error("[tests] the job succeeded, though it could not");
  return result.error();
}

SharedCluster& shared_cluster() {
  static SharedCluster shared(8);
  return shared;
}

std::map<std::uint32_t, double> private_memory(SharedCluster& cluster) {
  std::map<std::uint32_t, double> bytes;
  for (const auto& actor : take(cluster.client().status(), "status").actors)
    bytes[actor.id] = status_bytes(actor.pid, "RssAnon");
  return bytes;
}

std::string name_of(const Parallelism& degrees) {
  std::string name;
  const auto add = [&name](const char* axis, int degree) {
    if (degree == 1) return;
    if (!name.empty()) name += ' ';
    name.append(axis).append(std::to_string(degree));
  };
  add("dp ", degrees.dp);
  add("cfg ", degrees.cfg);
  add("pp ", degrees.pp);
  add("ulysses ", degrees.ulysses);
  add("ring ", degrees.ring);
  add("tp ", degrees.tp);
  add("vae ", degrees.vae);
  for (std::size_t i = 0; i < degrees.stages.size(); ++i)
    name.append(i == 0 ? " stages " : ",").append(std::to_string(degrees.stages[i]));
  return name.empty() ? "one actor" : name;
}

}  // namespace troupe::testing
