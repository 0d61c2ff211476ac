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
    : cluster_(std::move(options)),
      client_(connect_when_ready(cluster_)),
      inspector_(take(Inspector::connect(cluster_.endpoint(), kPatience), "inspect")) {}

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
                       [](const auto& actor) { return actor.state == ActorState::ready; });
  });
}

std::uint64_t FaultCluster::submit(const Submission& submission, Client::OnProgress on_progress) {
  return take(client_.submit(submission, std::move(on_progress)), "submit");
}

JobResult FaultCluster::run(const Submission& submission) {
  const auto job = submit(submission);
  return take(client_.wait(job, kJobDeadline), "job " + std::to_string(job));
}

JobResult FaultCluster::struck(const Submission& submission, int step, const Blow& blow) {
  hold(0, {.step = step});
  const auto job = submit(submission);
  held(0);
  if (!keeps(job, step))
    throw std::runtime_error("[tests] the steps before " + std::to_string(step) + " are not kept");
  blow(job);
  auto result = take(client_.wait(job, kJobDeadline), "job " + std::to_string(job));
  const auto recoveries = nlohmann::json::parse(result.report).at("recoveries");
  if (recoveries.empty() || recoveries[0].at("step") != step)
    throw std::runtime_error("[tests] it did not go on from step " + std::to_string(step) + ": " +
                             recoveries.dump());
  return result;
}

void FaultCluster::hold(std::uint32_t actor, const HoldAt& at) {
  hold_actor(inspector_, actor, at);
}

ActorInfo FaultCluster::held(std::uint32_t actor) {
  return held_actor(client_, actor);
}

void FaultCluster::release(std::uint32_t actor) {
  release_actor(inspector_, actor);
}

bool FaultCluster::keeps(std::uint64_t job, int steps) {
  return keeps_steps(inspector_, job, steps);
}

std::uint32_t FaultCluster::actor_of_stage(int stage) {
  for (const auto& actor : status().actors)
    for (const auto& group : actor.groups)
      if (group.axis == "pp" && group.rank_in_group == stage) return actor.id;
  throw std::runtime_error("[tests] no actor has stage " + std::to_string(stage));
}

void hold_actor(Inspector& inspector, std::uint32_t actor, const HoldAt& at) {
  constexpr double kLongerThanAnyTest = 3600;
  take(inspector.inject(actor, Fault::hold, kLongerThanAnyTest, at), "hold");
}

ActorInfo held_actor(Client& client, std::uint32_t actor) {
  ActorInfo row;
  if (!eventually(2 * kPatience, [&] {
        row = take(client.status(), "status").actors.at(actor);
        return row.doing.ends_with("(held)");
      }))
    throw std::runtime_error("[tests] actor " + std::to_string(actor) + " is not held, but " +
                             to_string(row.state) + ": " + row.doing);
  return row;
}

void release_actor(Inspector& inspector, std::uint32_t actor) {
  take(inspector.inject(actor, Fault::release), "release");
}

bool keeps_steps(Inspector& inspector, std::uint64_t job, int steps) {
  return eventually(kPatience, [&] {
    const auto graph = nlohmann::json::parse(take(inspector.graph(job), "graph"));
    return graph.at("kept_steps") >= steps;
  });
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
