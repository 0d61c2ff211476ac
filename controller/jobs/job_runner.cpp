#include "controller/jobs/job_runner.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "controller/jobs/run.h"
#include "controller/schedule/batches.h"

namespace troupe::jobs {
namespace {

/// Unfinished tasks that may lie at an actor: enough to hide a control-plane round trip behind any
/// micro-step.
constexpr int kWindow = 6;

}  // namespace

JobRunner::JobRunner(Tools tools) : tools_(std::move(tools)), dispatcher_(kWindow) {}

JobRunner::~JobRunner() = default;

JobRunner::Run* JobRunner::find(JobId job) {
  const auto found = runs_.find(job);
  return found == runs_.end() ? nullptr : found->second.get();
}

void JobRunner::start_queued() {
  const auto waiting = tools_.table.queue();
  for (const JobId id : waiting) {
    JobEntry& job = *tools_.table.find(id);
    const cluster::Model model{job.spec.model, job.fingerprint};
    auto deployment = tools_.deployments.find_idle(model, job.plan);
    if (!deployment) {
      const auto actors = tools_.deployments.choose_actors(job.plan.degrees.world());
      if (!actors) return;  // in order: later jobs do not overtake
      tools_.table.start(id, tools_.now());
      for (const auto actor : *actors)
        tools_.members.at(actor).job = id;
      auto run = std::make_unique<Run>(tools_.io);
      run->job = id;
      runs_[id] = std::move(run);
      progress(job);
      try {
        runs_[id]->deployment =
            tools_.deployments.load(model, job.plan, *actors,
                                    [this, id](std::shared_ptr<cluster::Deployment> loaded,
                                               const std::optional<wire::Failure>& failure) {
                                      deployed(id, loaded, failure);
                                    });
      } catch (const std::exception& error) {
        fail(id, {wire::FailureCode::internal,
                  std::string("the model cannot be loaded: ") + error.what()});
      }
      continue;
    }
    tools_.table.start(id, tools_.now());
    for (const auto actor : deployment->actor_of_rank)
      tools_.members.at(actor).job = id;
    auto run = std::make_unique<Run>(tools_.io);
    run->job = id;
    run->deployment = deployment;
    runs_[id] = std::move(run);
    launch(job, deployment);
  }
}

void JobRunner::deployed(JobId id, const std::shared_ptr<cluster::Deployment>& deployment,
                         const std::optional<wire::Failure>& failure) {
  Run* run = find(id);
  if (!run) return;  // it ended meanwhile
  if (failure) {
    fail_with_cause(id, *failure);
    return;
  }
  launch(*tools_.table.find(id), deployment);
}

wire::BeginJob JobRunner::begin_message(const JobEntry& job, const cluster::Deployment& deployment,
                                        int rank) const {
  using Role = plan::GroupPlan::Role;
  const auto& plan = job.plan;
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  wire::BeginJob begin;
  begin.job = job.id;
  begin.deployment = deployment.id;
  begin.epoch = deployment.epoch;
  begin.request = plan.request;
  begin.first_image = plan.images[at.dp].begin;
  begin.last_image = plan.images[at.dp].end;
  const auto& degrees = plan.degrees;
  begin.stage = {at.pp, degrees.pp};
  begin.cfg = {at.cfg, degrees.cfg};
  begin.ring = {at.ring, degrees.ring};
  begin.ulysses = {at.ulysses, degrees.ulysses};
  begin.tp = {at.tp, degrees.tp};
  begin.micro_steps = plan.micro_steps;
  begin.batch_parts = plan.batch_parts[at.dp];
  begin.vae = {0, 0};
  const auto position = [](const std::vector<int>& ranks, int of) {
    const auto found = std::find(ranks.begin(), ranks.end(), of);
    return found == ranks.end() ? -1 : static_cast<std::int32_t>(found - ranks.begin());
  };
  const auto id_of = [&](Role role, int where = -1) {
    const auto* group = plan.group_with(role, rank, where);
    return group ? group->id : 0;
  };
  if (const auto* group = plan.group_with(Role::caption, rank, -1)) {
    begin.caption_rank = position(group->ranks, rank);
    begin.caption_root = position(group->ranks, plan.text_rank(at.dp));
  }
  const auto decoders = plan.decoders(at.dp);
  if (const auto own = position(decoders, rank); own >= 0)
    begin.vae = {own, static_cast<std::int32_t>(decoders.size())};
  if (const auto* group = plan.group_with(Role::rows, rank, -1)) {
    begin.row_rank = position(group->ranks, rank);
    begin.row_decoders = static_cast<std::int32_t>(decoders.size());
    for (const int holder : plan.latent_holders(at.dp))
      begin.row_holders.push_back(position(group->ranks, holder));
  }
  const bool first = at.pp == 0;
  const bool last = at.pp + 1 == degrees.pp;
  begin.groups = {.caption = id_of(Role::caption),
                  .previous = id_of(first ? Role::feedback : Role::edge, 1),
                  .next = id_of(last ? Role::feedback : Role::edge, 0),
                  .cfg = id_of(Role::cfg),
                  .ulysses = id_of(Role::ulysses),
                  .ring = id_of(Role::ring),
                  .tp = id_of(Role::tp),
                  .heads = id_of(Role::heads),
                  .stage = id_of(Role::stage),
                  .rows = id_of(Role::rows),
                  .vae = id_of(Role::vae)};
  return begin;
}

void JobRunner::launch(JobEntry& job, const std::shared_ptr<cluster::Deployment>& deployment) {
  Run& run = *find(job.id);
  tools_.table.run(job.id);
  run.begun = true;
  run.began = tools_.now();
  run.stats.resize(deployment->actor_of_rank.size());
  try {
    for (std::size_t rank = 0; rank < deployment->actor_of_rank.size(); ++rank) {
      const auto& actor = tools_.members.at(deployment->actor_of_rank[rank]);
      tools_.server.send(actor.peer, begin_message(job, *deployment, static_cast<int>(rank)));
    }
    dispatcher_.add_job(job.id, schedule::make_task_graph(job.plan), deployment->actor_of_rank);
  } catch (const std::exception& error) {
    return fail(job.id, {wire::FailureCode::internal,
                         std::string("the job cannot begin: ") + error.what()});
  }
  progress(job);
  pump();
}

void JobRunner::pump() {
  const auto epoch_of = [this](JobId job) { return find(job)->deployment->epoch; };
  for (const auto& batch : schedule::in_batches(dispatcher_.issue(), epoch_of)) {
    try {
      tools_.server.send(tools_.members.at(batch.actor).peer, batch.tasks);
    } catch (const wire::WireError& error) {
      fail_soon(batch.tasks.commands.front().job, {wire::FailureCode::internal, error.what()});
    }
  }
}

void JobRunner::task_done(cluster::ActorId actor, const wire::TaskDone& done) {
  Run* run = find(done.job);
  if (!run || !run->deployment || run->deployment->epoch != done.epoch) return;
  JobEntry& job = *tools_.table.find(done.job);
  if (!done.warnings.empty()) {
    run->warnings.insert(run->warnings.end(), done.warnings.begin(), done.warnings.end());
    progress(job, {}, done.warnings);
  }
  take_blobs(*run, actor, done);
  if (dispatcher_.has(done.job) && dispatcher_.finish(done.job, done.task, actor))
    task_complete(*run, done.task);
  pump();
  maybe_end(done.job);
}

void JobRunner::progress(JobEntry& job, std::vector<wire::BlobRef> blobs,
                         std::vector<std::string> warnings) {
  const Run* run = find(job.id);
  try {
    tools_.on_progress(job, {.job = job.id,
                             .phase = job.phase,
                             .step = job.step,
                             .steps = job.plan.request.steps,
                             .seconds_per_step = run ? run->clock.seconds_per_step() : 0,
                             .blobs = std::move(blobs),
                             .warnings = std::move(warnings)});
  } catch (const wire::WireError& error) {
    fail_soon(job.id, {wire::FailureCode::internal,
                       std::string("its progress cannot be sent: ") + error.what()});
  }
}

}  // namespace troupe::jobs
