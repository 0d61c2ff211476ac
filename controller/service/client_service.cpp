#include "controller/service/client_service.h"

#include <algorithm>

#include "base/format.h"
#include "controller/jobs/report.h"
#include "controller/plan/layout.h"
#include "controller/service/metrics.h"
#include "controller/service/permissions.h"

namespace troupe::service {

namespace {

/// Sends a message to all who watch a job: it is encoded once, however many they are.
template <class M>
void tell_watchers(control::Server& server, const jobs::JobEntry& job, const M& message) {
  if (job.client.watchers.empty()) return;
  const auto frame = wire::encode_frame({}, message);
  for (const auto watcher : job.client.watchers)
    server.send_frame(watcher, frame);
}

/// Returns the beginning of a longer text and …, whole UTF-8 letters: lists of jobs must fit into
/// one message.
std::string beginning(const std::string& text, std::size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && (text[bytes] & 0xc0) == 0x80)
    --bytes;
  return text.substr(0, bytes) + "…";
}

std::vector<wire::GroupRow> group_rows(const mesh::Degrees& degrees, int rank) {
  const mesh::Mesh mesh(degrees);
  std::vector<wire::GroupRow> rows;
  using mesh::Axis;
  for (const auto& [axis, degree] : mesh::kSplitAxes) {
    const auto group = mesh.group_of(axis, rank);
    const bool always = axis == Axis::dp || axis == Axis::cfg || axis == Axis::pp;
    if (group.size() == 1 && !always) continue;
    rows.push_back(
        {mesh::to_string(axis),
         {group.begin(), group.end()},
         static_cast<std::int32_t>(std::find(group.begin(), group.end(), rank) - group.begin())});
  }
  return rows;
}

/// Returns whether what the actor does is one of the user's own jobs.
bool may_see_work(const control::ClientUser& user, const Tools& tools, cluster::ActorId actor) {
  if (user.role >= control::ClientRole::all_jobs) return true;
  // All jobs that the actor has, since any of these may be what it loads.
  auto runs = tools.members.at(actor).jobs;
  if (const auto current = tools.runner.dispatcher().current(actor)) runs = {current->first};
  return std::ranges::all_of(runs, [&](const jobs::JobId run) {
    const auto* entry = tools.table.find_run(run);
    return entry && may_see(user, *entry);
  });
}

wire::JobRow job_row(const Tools& tools, const jobs::JobEntry& job, std::int32_t position) {
  const auto& own_seeds = job.plan.request.picture_seeds;
  const bool over = has_ended(job.state);
  const auto met = tools.runner.met(job.id);
  return {.id = job.id,
          .state = tools.runner.paused(job.id) ? JobState::paused : job.state,
          .prompt = beginning(job.plan.request.prompts.front(), 200),
          .pictures = job.plan.picture_count(),
          .step = job.step,
          .steps = job.plan.request.steps,
          .seconds = (over ? job.ended : tools.now()) - job.submitted,
          .cause = beginning(over          ? job.failure.what
                             : met.empty() ? tools.runner.waits_for(job)
                                           : met,
                             1000),
          .priority = job.spec.priority,
          .share = job.spec.share,
          .batch = job.batching.number,
          .not_batched = beginning(job.batching.why_not, 300),
          .queue_position = position,
          .model = beginning(job.spec.model, 300),
          .seed = own_seeds.empty() ? job.plan.request.seed : own_seeds.front(),
          .own_seeds = !own_seeds.empty(),
          .degrees = plan::parallelism_of(job.plan.degrees, job.plan.vae_degree),
          .on_behalf_of = job.spec.on_behalf_of};
}

struct Listed {
  const jobs::JobEntry* job = nullptr;
  std::int32_t position = 0;  // of one that waits
};

/// Returns the jobs that run, those that wait in the order of their turns, and those that have
/// ended, newest first.
std::vector<Listed> in_order(const Tools& tools) {
  std::vector<Listed> order, without_turn, ended;
  const auto turns = tools.table.queue();
  const auto& all = tools.table.all();
  order.reserve(all.size());
  for (const auto& [id, job] : all) {
    if (has_ended(job.state)) {
      ended.push_back({&job});
    } else if (job.state != JobState::queued) {
      order.push_back({&job});
    } else if (job.held) {
      without_turn.push_back({&job, static_cast<std::int32_t>(turns.size())});
    }
  }
  for (std::size_t turn = 0; turn < turns.size(); ++turn)
    order.push_back({&all.at(turns[turn]), static_cast<std::int32_t>(turn)});
  order.insert(order.end(), without_turn.begin(), without_turn.end());
  order.insert(order.end(), ended.rbegin(), ended.rend());
  return order;
}

/// Returns a page of the jobs that this user may see, for `troupe jobs`.
wire::JobList job_list(const Tools& tools, const control::ClientUser& user,
                       const wire::ListJobs& asked) {
  auto order = in_order(tools);
  std::erase_if(order, [&](const Listed& entry) { return !may_see(user, *entry.job); });
  if (asked.job != 0) {
    const auto wanted =
        std::ranges::find(order, asked.job, [](auto& entry) { return entry.job->id; });
    const auto batch = wanted == order.end() ? 0 : wanted->job->batching.number;
    std::erase_if(order, [&](const Listed& entry) {
      return entry.job->id != asked.job && (batch == 0 || entry.job->batching.number != batch);
    });
  }
  wire::JobList list;
  list.all = static_cast<std::uint32_t>(order.size());
  const std::size_t most = std::min(asked.most > 0 ? asked.most : ~0u, wire::kJobsOfPage);
  for (std::size_t i = asked.skip; i < order.size() && list.jobs.size() < most; ++i)
    list.jobs.push_back(job_row(tools, *order[i].job, order[i].position));
  std::ranges::sort(list.jobs, {}, &wire::JobRow::id);
  return list;
}

/// Returns the cluster's status for `troupe status`. Recent failures are for those who may see
/// everybody's jobs.
wire::ClusterStatus cluster_status(const ClusterFacts& facts, const Tools& tools,
                                   const control::ClientUser& user, const wire::GetStatus& asked) {
  wire::ClusterStatus status;
  status.version = facts.version;
  status.host = facts.host;
  status.pid = facts.pid;
  status.endpoint = facts.endpoint;
  status.model = facts.model;
  status.uptime_seconds = tools.now() - facts.started;
  const auto& all = tools.members.all();
  status.actors_all = static_cast<std::uint32_t>(all.size());
  auto next = all.begin();
  std::advance(next, std::min<std::size_t>(asked.skip_actors, all.size()));
  for (; next != all.end() && status.actors.size() < wire::kActorsOfPage; ++next) {
    const auto& [id, actor] = *next;
    wire::ActorRow row;
    row.id = id;
    row.incarnation = actor.restarts + 1;  // which of its processes; their secret numbers stay here
    row.state = tools.runner.busy(id) && !actor.draining ? ActorState::busy : actor.shown_state();
    row.host = actor.host;
    row.pid = actor.pid;
    row.device = actor.device;
    row.local_rank = actor.local_rank;
    if (const auto kept = tools.deployments.at(id); !kept.empty()) {
      const auto& newest = *kept.back();
      row.groups = group_rows(newest.degrees, actor.parts.at(newest.id));
    }
    row.doing = tools.runner.doing(id);
    if (row.doing.empty() && !actor.jobs.empty())
      row.doing = tools.runner.name_of(*actor.jobs.begin()) + " waiting";
    if (actor.held) row.doing += row.doing.empty() ? "held" : " (held)";
    if (!row.doing.empty() && !may_see_work(user, tools, id)) row.doing = "another client's job";
    row.restarts = actor.restarts;
    // Of another host's processes nothing is known here.
    if (actor.state != ActorState::dead && !actor.remote)
      row.memory_bytes = resident_bytes(actor.pid);
    status.actors.push_back(std::move(row));
  }
  status.jobs_queued = static_cast<std::uint32_t>(tools.table.count(JobState::queued));
  status.jobs_running = static_cast<std::uint32_t>(tools.table.count(JobState::running) +
                                                   tools.table.count(JobState::loading));
  status.jobs_ended = static_cast<std::uint32_t>(tools.table.ended_count());
  // They tell of everybody's jobs.
  if (user.role >= control::ClientRole::all_jobs) status.recent_failures = tools.failures.recent();
  return status;
}

}  // namespace

ClientService::ClientService(ClusterFacts facts, Tools tools)
    : facts_(std::move(facts)),
      tools_(std::move(tools)),
      reader_(tools_.io, tools_.read_model, tools_.allowed_models),
      planner_(facts_, tools_),
      admission_(facts_, tools_, reader_, planner_),
      restored_(tools_, reader_, planner_) {}

void ClientService::close(const std::string& why) {
  closed_ = true;
  admission_.close(why);
  restored_.close();
}

void ClientService::handle(const Asker& asker, wire::SubmitJob submission) {
  admission_.submit(asker.peer, asker.header, std::move(submission));
}

void ClientService::handle(const Asker& asker, const wire::WaitJob& wanted) {
  auto* job = job_for(tools_.server, tools_.table, asker.peer, asker.header, wanted.job);
  if (!job) return;
  job->client.watchers.insert(asker.peer);
  // The job's client may be back after a restart or a lost link, or somebody else waits now: who
  // asks owns the job.
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

void ClientService::handle(const Asker& asker, const wire::CancelJob& order) {
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

void ClientService::handle(const Asker& asker, const wire::ListJobs& wanted) {
  reply(asker, job_list(tools_, tools_.server.user(asker.peer), wanted));
}

void ClientService::handle(const Asker& asker, const wire::GetStatus& wanted) {
  reply(asker, cluster_status(facts_, tools_, tools_.server.user(asker.peer), wanted));
}

void ClientService::handle(const Asker& asker, const wire::StopCluster&) {
  const auto open = std::ranges::count_if(
      tools_.table.all(), [](const auto& listed) { return !has_ended(listed.second.state); });
  reply(asker, wire::Done{counted(open, "job") +
                          (tools_.journal ? " kept in the journal" : " ended with it")});
  tools_.stop();
}

void ClientService::client_lost(control::PeerId peer, const control::Loss& loss) {
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

void ClientService::progress(const jobs::JobEntry& job, const wire::JobProgress& progress) {
  if (tools_.journal && !closed_) tools_.journal->changed(job);
  tell_watchers(tools_.server, job, progress);
}

void ClientService::failing(jobs::JobEntry& job) {
  const auto file = introspection_->record_failure(job.id, job.failure.what);
  if (!file.empty()) job.failure.what += " (flight record: " + file + ")";
}

void ClientService::batch_failing(const jobs::JobEntry& batch, const std::string& cause) {
  const auto file = introspection_->record_failure(batch.id, cause);
  tools_.failures.note(cause + "; its jobs begin anew, each alone" +
                       (file.empty() ? "" : " (flight record: " + file + ")"));
}

void ClientService::boundary(const jobs::JobEntry& job) {
  if (tools_.journal && !closed_) tools_.journal->boundary(job);
}

void ClientService::forgotten(const jobs::JobEntry& job) {
  if (tools_.journal && !closed_) tools_.journal->forgotten(job.id);
}

void ClientService::finished(jobs::JobEntry& job) {
  admission_.drop_inputs(job.plan.request);
  if (!tools_.journal) return notify_finished(job);
  // The stop of a cluster ends no job that is in its journal.
  if (closed_ && job.state != JobState::succeeded) return;
  job.client.unreported = true;
  tools_.journal->ended(job, [this, id = job.id](const std::optional<std::string>& error) {
    auto* ended = tools_.table.find(id);
    if (!ended) return;
    ended->client.unreported = false;
    if (error) notify_not_journaled(*ended, *error);
    notify_finished(*ended);
    tools_.runner.expire();
  });
}

void ClientService::notify_not_journaled(jobs::JobEntry& job, const std::string& error) {
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

void ClientService::notify_finished(const jobs::JobEntry& job) {
  tell_watchers(tools_.server, job, jobs::finished_message(job));
  if (job.state == JobState::failed)
    tools_.failures.note(fmt::format("job {}: {}", job.id, job.failure.what));
}

}  // namespace troupe::service
