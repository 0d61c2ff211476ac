#include "controller/app/controller.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <stdexcept>
#include <thread>

#include "base/log_line.h"
#include "controller/deployments/device_kinds.h"
#include "controller/hosts/capacity.h"
#include "controller/jobs/batching.h"
#include "controller/jobs/replan.h"
#include "controller/jobs/settled_stages.h"

// The rooms, and what each may ask of the others.

namespace troupe::cluster {

void Controller::make_rooms() {
  figures_ = std::make_unique<HostFigures>(*server_, control::host_name(), local_capacity().cores);
  environment_ = std::make_unique<LiveEnvironment>(
      io_, *server_, *blob_server_, blobs_,
      LiveEnvironment::Launch{
          .token = token_,
          .keys = guard_ ? control::to_text(
                               guard_->issue("the cluster's actors", control::ClientRole::operate))
                         : "",
          .threads = options_.threads_per_actor,
          .tensor_host = tensor_host()});
  deployments_ = std::make_unique<Deployments>(
      *environment_, members_,
      Deployments::Events{
          .on_ready = [this](const auto& deployment) { runner_->deployment_ready(deployment); },
          .on_failed =
              [this](const auto& deployment, const wire::Failure& failure) {
                runner_->deployment_failed(deployment, failure);
              },
          .on_free = [this] { environment_->post([this] { runner_->start_queued(); }); },
          .on_stuck =
              [this](ActorId id) {
                supervisor_->kill(id, "it did not answer the end of its epoch");
              }});
  runner_ = std::make_unique<jobs::JobRunner>(jobs::JobRunner::Tools{
      .environment = *environment_,
      .members = members_,
      .deployments = *deployments_,
      .table = table_,
      .options = {.max_jobs_per_deployment = static_cast<std::size_t>(options_.max_jobs_together),
                  .max_recoveries = options_.max_recoveries,
                  .max_batch = options_.max_batch},
      .on_progress = [this](const jobs::JobEntry& job,
                            wire::JobProgress progress) { gateway_->tell_progress(job, progress); },
      .on_finished = [this](jobs::JobEntry& job) { gateway_->tell_finished(job); },
      .on_boundary =
          [this](const jobs::JobEntry& job) {
            if (journal_ && !gateway_->closed()) journal_->boundary(job);
          },
      .on_forgotten =
          [this](const jobs::JobEntry& job) {
            if (journal_ && !gateway_->closed()) journal_->forgotten(job.id);
          },
      .recorder = &recorder_,
      .on_failing =
          [this](jobs::JobEntry& job) {
            const auto file = introspection_->record_failure(job.id, job.failure.what);
            if (!file.empty()) job.failure.what += " (flight record: " + file + ")";
          },
      .on_batch_failing =
          [this](const jobs::JobEntry& batch, const std::string& cause) {
            const auto file = introspection_->record_failure(batch.id, cause);
            gateway_->note_failure(cause + "; its jobs begin anew, each alone" +
                                   (file.empty() ? "" : " (flight record: " + file + ")"));
          },
      .plan_again = [this](const jobs::JobEntry& job,
                           int actors) { return plan_again(job, actors); },
      .plan_batch =
          [](const jobs::JobEntry& first, const wire::ImageRequest& request) {
            if (!first.model)
              throw std::invalid_argument("[cluster] the job's model is not known any more");
            return plan::make_plan(*first.model, request, jobs::parallelism_of(first));
          }});
  supervisor_ = std::make_unique<Supervisor>(Supervisor::Tools{
      .environment = *environment_,
      .members = members_,
      .deployments = *deployments_,
      .runner = *runner_,
      .options = {.start_deadline = static_cast<double>(options_.start_deadline.count()),
                  .task_deadline = static_cast<double>(options_.task_deadline.count()),
                  .max_respawns = options_.max_respawns},
      .note = [this](const std::string& text) { gateway_->note_failure(text); },
      .on_given_up = [this](const std::string& why) { cannot_start(why); },
      .starting_up = [this] { return ready_handler_ != nullptr; },
      .record_hang = [this](
                         ActorId id,
                         const std::string& why) { return introspection_->record_hang(id, why); }});
  drainer_ =
      std::make_unique<Drainer>(Drainer::Tools{*environment_, members_, *deployments_, *runner_});
  gateway::ClusterFacts facts{.version = TROUPE_VERSION,
                              .host = control::host_name(),
                              .pid = static_cast<std::uint32_t>(getpid()),
                              .endpoint = server_->endpoint(),
                              .model = options_.model,
                              .device = parse_choice<DeviceKind>(options_.device).value(),
                              .started = environment_->now()};
  started_ = facts.started;
  gateway::Gateway::Tools tools{io_,
                                *server_,
                                *blob_server_,
                                blobs_,
                                members_,
                                *deployments_,
                                table_,
                                *runner_,
                                [this] { return environment_->now(); },
                                [this] {
                                  if (stop_asked_) boost::asio::post(io_, stop_asked_);
                                },
                                {},
                                options_.allow_models
                                    ? gateway::AllowedFolders(*options_.allow_models)
                                    : gateway::AllowedFolders(),
                                journal_.get(),
                                options_.max_recoveries};
  if (options_.logs) tools.log = log_line;
  tools.machine = [this](WeightChoice weights) { return machine(weights); };
  gateway_ = std::make_unique<gateway::Gateway>(facts, std::move(tools));
}

plan::Plan Controller::plan_again(const jobs::JobEntry& job, int actors) const {
  if (!job.model) throw std::invalid_argument("[cluster] the job's model is not known any more");
  const auto known = machine(job.spec.request.weight_dtype);
  auto plan = jobs::plan_again(job, *job.model, actors, known,
                               {members_.memory_steps(), [this](const plan::Plan& other) {
                                  return !deployments_->shortage(other);
                                }});
  jobs::settle_stages(plan, job.spec.model, job.fingerprint, *job.model, known,
                      {members_, *deployments_, table_});
  return plan;
}

plan::Machine Controller::machine(WeightChoice weight_dtype) const {
  return figures_->machine(
      members_,
      commonest_kind(members_, weight_dtype, parse_choice<DeviceKind>(options_.device).value()));
}

void Controller::make_introspection() {
  introspection_ = std::make_unique<gateway::Introspection>(gateway::Introspection::Tools{
      .server = *server_,
      .environment = *environment_,
      .members = members_,
      .table = table_,
      .runner = *runner_,
      .recorder = recorder_,
      .signal = [this](ActorId id, int signal) { return hosts_->agent_of(id).signal(id, signal); },
      .lines =
          [this](ActorId id, std::uint64_t after, std::size_t lines) {
            const auto& log = hosts_->agent_of(id).lines(id);
            return wire::LogLines{log.last(), log.lines(after, lines)};
          },
      .host = control::host_name(),
      .pid = static_cast<std::uint32_t>(getpid()),
      .log_folder = options_.log_folder,
      .machine =
          [this] {
            auto known = machine(WeightChoice::as_computed);
            const auto least = members_.memory_steps().front().first;
            if (least > 0) known.device.memory = least;
            return known;
          },
      .note = [this](const std::string& text) { gateway_->note_failure(text); }});
  gateway_->use(*introspection_, recorder_);
  if (options_.metrics_port < 0) return;
  metrics_ = std::make_unique<gateway::MetricsServer>(
      io_, static_cast<std::uint16_t>(options_.metrics_port), [this] { return metrics(); });
}

void Controller::make_user_actors() {
  user::UserActorService::Options room;
  room.plugins = options_.plugins;
  room.host = control::host_name();
  room.cores = std::thread::hardware_concurrency();
  room.gpus = user::local_gpus(options_.gpus());
  if (!options_.plugins.empty())
    room.processes.host_program = user::find_host_program(options_.actor_program);
  room.processes.actor_program = options_.actor_program;
  room.processes.control_endpoint = server_->endpoint();
  room.processes.listen_host = tensor_host();
  // A secret of their own: that of the actors is also the tensor plane's, and plugins are others'
  // code. So their keys are not for everything, either.
  room.processes.access = {
      control::random_secret(),
      guard_ ? control::to_text(guard_->issue("user actors", control::ClientRole::all_jobs)) : "",
      options_.insecure};
  room.keyed = guard_ != nullptr;
  room.processes.log_folder = options_.log_folder;
  room.note = [this](const std::string& text) { gateway_->note_failure(text); };
  room.on_exit = [this] { check_stopped(); };
  users_ = std::make_unique<user::UserActorService>(io_, *environment_, std::move(room));
  users_->check_plugins([this](std::optional<std::string> why) {
    plugins_checked_ = true;
    if (why) return cannot_start(*why);
    check_ready();
  });
}

}  // namespace troupe::cluster
