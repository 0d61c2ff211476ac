#include "tests/process/support/fault_cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/process/support/connect.h"
#include "tests/process/support/foreseen.h"
#include "tests/process/support/models.h"
#include "tests/process/support/processes.h"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kJobDeadline = 600s;

}  // namespace

FaultCluster::FaultCluster(cluster::ClusterOptions options)
    : cluster_(std::move(options)), client_(connect_when_ready(cluster_)) {}

Client FaultCluster::another_client() const {
  return connect_to(cluster_);
}

ClusterInfo FaultCluster::status() {
  return take(client_.status(), "status");
}

std::vector<pid_t> FaultCluster::pids() {
  std::vector<pid_t> pids;
  for (const auto& actor : status().actors)
    pids.push_back(static_cast<pid_t>(actor.pid));
  return pids;
}

std::uint64_t FaultCluster::restarts() {
  std::uint64_t sum = 0;
  for (const auto& actor : status().actors)
    sum += actor.restarts;
  return sum;
}

std::optional<JobInfo> FaultCluster::job(std::uint64_t id) {
  for (const auto& job : take(client_.jobs(), "jobs")) {
    if (job.id == id) return job;
  }
  return std::nullopt;
}

bool FaultCluster::whole(std::chrono::milliseconds deadline) {
  return eventually(deadline, [&] {
    const auto actors = status().actors;
    return std::all_of(actors.begin(), actors.end(),
                       [](const auto& actor) { return actor.state == "ready"; });
  });
}

std::uint64_t FaultCluster::submit(const Submission& submission, Client::OnProgress on_progress) {
  return take(client_.submit(submission, std::move(on_progress)), "submit");
}

JobResult FaultCluster::run(const Submission& submission) {
  const auto job = submit(submission);
  return take(client_.wait(job, kJobDeadline), "job " + std::to_string(job));
}

std::optional<JobResult> FaultCluster::struck_once(const Submission& submission, int step,
                                                   const Blow& blow, int kept) {
  const auto before = restarts();
  const auto there = std::make_shared<std::atomic<bool>>(false);
  const auto job = submit(submission, [there, step](const Progress& progress) {
    *there = *there || (progress.phase == "denoising" && progress.step >= step);
  });
  if (!eventually(2 * kPatience, [&] { return there->load(); }))
    throw std::runtime_error("[tests] job " + std::to_string(job) + " does not come to step " +
                             std::to_string(step));
  blow(job);
  auto result = take(client_.wait(job, kJobDeadline), "job " + std::to_string(job));
  const auto recoveries = nlohmann::json::parse(result.report).at("recoveries");
  if (!recoveries.empty() && recoveries[0].at("step").get<int>() >= kept) return result;
  eventually(kPatience, [&] { return restarts() > before; });
  whole();
  return std::nullopt;
}

JobResult FaultCluster::struck(const Submission& submission, int step, const Blow& blow, int kept) {
  for (int attempt = 0; attempt < 5; ++attempt) {
    if (auto result = struck_once(submission, step, blow, kept)) return std::move(*result);
  }
  throw std::runtime_error("[tests] of five blows none met a job that went on where it was");
}

void FaultCluster::freeze() {
  for (const auto pid : actors_of(getpid()))
    kill(pid, SIGSTOP);
}

void FaultCluster::thaw() {
  for (const auto pid : actors_of(getpid()))
    kill(pid, SIGCONT);
}

std::optional<Fall> FaultCluster::fall_of(std::uint64_t job, Clock::time_point blow) {
  const auto result = client_.wait(job, kJobDeadline);
  if (result) return std::nullopt;
  return Fall{result.error(), std::chrono::duration<double>(Clock::now() - blow).count()};
}

cluster::ClusterOptions actors(int count) {
  cluster::ClusterOptions options;
  options.actors = count;
  options.threads_per_actor = 1;
  options.actor_program = TROUPE_BINARY_DIR "/bin/troupe-actor";
  return options;
}

Submission demo_job(int steps) {
  Submission out;
  out.request.prompts = {"a red circle above a blue square on a white background"};
  out.request.steps = steps;
  out.request.seed = 11;
  out.request.method = "pipefusion";
  out.request.num_pipeline_patch = 4;
  out.request.want_latents = true;
  out.parallelism = {.dp = 1, .cfg = 2, .pp = 2};
  out.model = TROUPE_SOURCE_DIR "/examples/demo/model";
  return out;
}

Submission whole_demo_job(int steps) {
  auto out = demo_job(steps);
  out.parallelism = {.dp = 1, .cfg = 2, .pp = 1, .ulysses = 2};
  return out;
}

std::uint64_t memory_of(const Submission& submission) {
  const auto plan = plan_of(submission);
  std::uint64_t most = 0;
  for (const auto& own : plan.memory)
    most = std::max(most, own.peak());
  return most;
}

Submission tiny_job(int steps) {
  Submission out;
  out.request.prompts = {"a cat"};
  out.request.steps = steps;
  out.request.want_latents = true;
  out.model = checkpoint("tiny-pixart");
  return out;
}

}  // namespace troupe::testing
