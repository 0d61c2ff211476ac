#include "controller/gateway/gateway.h"

#include "base/format.h"
#include "controller/gateway/permissions.h"
#include "controller/gateway/status.h"
#include "controller/jobs/report.h"

namespace troupe::gateway {
namespace {

/// Sends a message to all who watch a job: it is encoded once, however many they are.
template <class M>
void tell_watchers(control::Server& server, const jobs::JobEntry& job, const M& message) {
  if (job.client.watchers.empty()) return;
  const auto frame = wire::encode_frame({}, message);
  for (const auto watcher : job.client.watchers)
    server.send_frame(watcher, frame);
}

}  // namespace

Gateway::Gateway(ClusterFacts facts, Tools tools)
    : facts_(std::move(facts)),
      tools_(std::move(tools)),
      reader_(tools_.io, tools_.read_model, tools_.allowed_models),
      planner_(facts_, tools_),
      admission_(facts_, tools_, reader_, planner_),
      restored_(tools_, reader_, planner_) {}

void Gateway::close(const std::string& why) {
  closed_ = true;
  admission_.close(why);
  restored_.close();
}

void Gateway::handle(const Asker& asker, wire::SubmitJob submission) {
  if (closed_)
    return reply(asker, wire::Failure{wire::FailureCode::refused, "the cluster is stopping"});
  admission_.submit(asker.peer, asker.header, std::move(submission));
}

void Gateway::handle(const Asker& asker, const wire::WaitJob& wanted) {
  auto* job = job_for(tools_.server, tools_.table, asker.peer, asker.header, wanted.job);
  if (!job) return;
  job->client.watchers.insert(asker.peer);
  // Its client, come back after a restart or after its link was given up; or somebody else.
  if (job->client.owner == 0 && !job->client.detached) {
    job->client.owner = asker.peer;
    job->client.adopted = true;
  }
  reply(asker, wire::Done{to_string(job->state)});
  if (has_ended(job->state) && !job->client.unreported)
    tools_.server.send(asker.peer, jobs::finished_message(*job));
  if (const auto met = tools_.runner.met(wanted.job); !met.empty()) {
    wire::JobProgress progress;
    progress.job = wanted.job;
    progress.phase = job->phase;
    progress.step = job->step;
    progress.steps = job->plan.request.steps;
    progress.warnings = {jobs::pause_text(met)};
    tools_.server.send(asker.peer, progress);
  }
}

void Gateway::handle(const Asker& asker, const wire::CancelJob& order) {
  const auto id = order.job;
  const auto* job = job_for(tools_.server, tools_.table, asker.peer, asker.header, id);
  if (!job) return;
  if (has_ended(job->state)) {
    return reply(asker, wire::Failure{wire::FailureCode::bad_request,
                                      fmt::format("job {} has already {}", id,
                                                  job->state == JobState::cancelled
                                                      ? "been cancelled"
                                                      : to_string(job->state))});
  }
  reply(asker, wire::Done{fmt::format("job {} is being cancelled", id)});
  tools_.runner.cancel(id, "cancelled by a client");
  if (tools_.journal && !has_ended(job->state)) tools_.journal->changed(*job);
}

void Gateway::handle(const Asker& asker, const wire::ListJobs& wanted) {
  reply(asker, job_list(tools_, tools_.server.user(asker.peer), wanted));
}

void Gateway::handle(const Asker& asker, const wire::GetStatus& wanted) {
  reply(asker, cluster_status(facts_, tools_, tools_.server.user(asker.peer), wanted));
}

void Gateway::handle(const Asker& asker, const wire::StopCluster&) {
  reply(asker, wire::Done{"the cluster is stopping"});
  tools_.stop();
}

void Gateway::client_lost(control::PeerId peer, const control::Loss& loss) {
  std::vector<jobs::JobId> orphans;
  for (const auto& [id, listed] : tools_.table.all()) {
    auto& job = *tools_.table.find(id);
    job.client.watchers.erase(peer);
    if (job.client.owner == peer && !job.client.detached && !has_ended(job.state))
      orphans.push_back(id);
  }
  for (const auto id : orphans) {
    auto& job = *tools_.table.find(id);
    if (tools_.journal) {
      for (const auto watcher : job.client.watchers) {
        if (!tools_.server.info(watcher)) continue;
        job.client.owner = watcher;
        job.client.adopted = true;
      }
    }
    if (job.client.owner != peer) continue;
    if (tools_.journal && (loss.given_up() || job.client.adopted)) {
      job.client.owner = 0;
      restored_.await_client(
          id, "its client has not come back (" +
                  (job.client.adopted ? "who waited for it meanwhile is gone" : loss.why) + ")");
    } else {
      tools_.runner.cancel(id, "its client is gone");
    }
  }
}

void Gateway::progress(const jobs::JobEntry& job, const wire::JobProgress& progress) {
  if (tools_.journal && !closed_) tools_.journal->changed(job);
  tell_watchers(tools_.server, job, progress);
}

void Gateway::failing(jobs::JobEntry& job) {
  const auto file = introspection_->record_failure(job.id, job.failure.what);
  if (!file.empty()) job.failure.what += " (flight record: " + file + ")";
}

void Gateway::batch_failing(const jobs::JobEntry& batch, const std::string& cause) {
  const auto file = introspection_->record_failure(batch.id, cause);
  tools_.failures.note(cause + "; its jobs begin anew, each alone" +
                       (file.empty() ? "" : " (flight record: " + file + ")"));
}

void Gateway::boundary(const jobs::JobEntry& job) {
  if (tools_.journal && !closed_) tools_.journal->boundary(job);
}

void Gateway::forgotten(const jobs::JobEntry& job) {
  if (tools_.journal && !closed_) tools_.journal->forgotten(job.id);
}

void Gateway::finished(jobs::JobEntry& job) {
  admission_.drop_inputs(job.plan.request);
  if (!tools_.journal) return say_finished(job);
  // Of a cluster that stops: it is not its end.
  if (closed_ && job.state != JobState::succeeded) return;
  job.client.unreported = true;
  tools_.journal->ended(job, [this, id = job.id](const std::optional<std::string>& error) {
    auto* ended = tools_.table.find(id);
    if (!ended) return;
    ended->client.unreported = false;
    if (error) say_not_kept(*ended, *error);
    say_finished(*ended);
    tools_.runner.expire();
  });
}

void Gateway::say_not_kept(jobs::JobEntry& job, const std::string& error) {
  if (job.state != JobState::succeeded) {
    job.failure.what += " (" + error + ")";
    return;
  }
  jobs::add_warning(job, error);
  wire::JobProgress progress;
  progress.job = job.id;
  progress.phase = job.phase;
  progress.step = progress.steps = job.plan.request.steps;
  progress.warnings = {error};
  tell_watchers(tools_.server, job, progress);
}

void Gateway::say_finished(const jobs::JobEntry& job) {
  tell_watchers(tools_.server, job, jobs::finished_message(job));
  if (job.state == JobState::failed)
    tools_.failures.note(fmt::format("job {}: {}", job.id, job.failure.what));
}

}  // namespace troupe::gateway
