#include "controller/jobs/job_runner.h"

#include <algorithm>

#include "controller/jobs/batching.h"
#include "controller/jobs/begin_message.h"
#include "controller/jobs/run.h"
#include "controller/schedule/mailings.h"

namespace troupe::jobs {
namespace {

/// Unfinished tasks that may lie at an actor: enough to hide a control-plane round trip behind any
/// micro-step.
constexpr int kWindow = 6;

/// Without its waits; nothing where the actor did not say.
std::optional<double> computing_seconds(const wire::TaskDone& done) {
  std::int64_t ns = done.ran.end_ns - done.ran.begin_ns;
  for (const auto& wait : done.waits)
    ns -= wait.end_ns - wait.begin_ns;
  if (ns <= 0) return std::nullopt;
  return static_cast<double>(ns) * 1e-9;
}

cluster::Model model_of(const JobEntry& job) {
  cluster::Model model{job.spec.model, job.fingerprint};
  const auto& loras = job.plan.request.loras;
  const auto& known = job.plan.lora_fingerprints;
  for (std::size_t i = 0; i < loras.size(); ++i)
    model.loras.push_back({loras[i], i < known.size() ? known[i] : 0});
  return model;
}

}  // namespace

JobRunner::JobRunner(Tools tools) : tools_(std::move(tools)), dispatcher_(kWindow) {}

JobRunner::~JobRunner() = default;

JobRunner::Run* JobRunner::find(JobId job) {
  const auto found = runs_.find(job);
  return found == runs_.end() ? nullptr : found->second.get();
}

JobRunner::Run* JobRunner::find(JobId job, std::uint64_t life) {
  Run* run = find(job);
  return run && run->life == life ? run : nullptr;
}

JobEntry& JobRunner::entry(const Run& run) {
  return *tools_.table.find_run(run.job);
}

std::vector<JobId> JobRunner::jobs_on(const cluster::Deployment& deployment) const {
  std::vector<JobId> jobs;
  for (const auto& [id, bytes] : deployment.jobs)
    jobs.push_back(id);
  return jobs;
}

void JobRunner::start_queued() {
  // In order: later jobs do not overtake. Who has begun before comes first.
  std::vector<JobId> homeless;
  for (const auto& [id, run] : runs_) {
    if (!run->deployment) homeless.push_back(id);
  }
  for (const JobId id : homeless) {
    JobEntry& job = *tools_.table.find_run(id);
    if (!can_ever_fit(job)) continue;
    const auto deployment = find_deployment(job);
    if (!deployment) return say_why_waiting(job);
    move_in(*find(id), deployment);
  }
  const auto waiting = tools_.table.queue();
  for (const JobId id : waiting) {
    JobEntry& job = *tools_.table.find(id);
    if (job.state != wire::JobState::queued) continue;  // it went with one before it
    if (can_ever_fit(job) && !start(job)) return say_why_waiting(job);
  }
}

void JobRunner::say_why_waiting(JobEntry& first) {
  first.waits_for = tools_.deployments.waits_for(model_of(first), first.plan,
                                                 tools_.options.max_jobs_per_deployment);
  for (JobEntry* job : entries_of(first))
    job->waits_for = first.waits_for;
  const auto waiting = tools_.table.queue();
  const auto name = name_of(first.id);
  for (const JobId id : waiting) {
    JobEntry& job = *tools_.table.find(id);
    const auto whom = may_meet(first, job) ? name : "another client's job";
    if (id != first.id) job.waits_for = "waits behind " + whom + ", which " + first.waits_for;
  }
}

cluster::Deployments::Ptr JobRunner::find_deployment(const JobEntry& job) {
  const auto model = model_of(job);
  auto& deployments = tools_.deployments;
  // Idle actors compute sooner than shared ones; but what is loaded stays while it can be shared.
  auto deployment = deployments.find(model, job.plan, tools_.options.max_jobs_per_deployment);
  if (deployment && jobs_on(*deployment).empty()) return deployment;
  auto actors = deployments.choose_actors(job.plan, /*beside=*/false);
  if (!actors && !deployment) actors = deployments.choose_actors(job.plan, /*beside=*/true);
  return actors ? deployments.load(model, job.plan, std::move(*actors)) : deployment;
}

bool JobRunner::has_place(const JobEntry& job) const {
  const auto& deployments = tools_.deployments;
  return deployments.find(model_of(job), job.plan, tools_.options.max_jobs_per_deployment) ||
         deployments.choose_actors(job.plan, /*beside=*/true);
}

bool JobRunner::start(JobEntry& job) {
  if (start_batch(job)) return true;
  auto alone = why_alone(job);
  const auto deployment = find_deployment(job);
  if (!deployment) return false;
  job.not_batched = std::move(alone);
  tools_.table.start(job.id, tools_.outside.now());
  auto& run = runs_[job.id] = std::make_unique<Run>();
  run->job = job.id;
  move_in(*run, deployment);
  return true;
}

void JobRunner::move_in(Run& run, const cluster::Deployments::Ptr& deployment) {
  JobEntry& job = entry(run);
  job.waits_for.clear();
  say_company(job);
  tools_.deployments.enter(deployment, run.job, job.plan);
  run.deployment = deployment;
  if (deployment->state == cluster::Deployment::State::ready) {
    launch(run);
  } else {
    progress(job);
  }
}

void JobRunner::deployment_ready(const cluster::Deployments::Ptr& deployment) {
  for (const JobId id : jobs_on(*deployment)) {
    if (Run* run = find(id); run && !run->begun) launch(*run);
  }
}

void JobRunner::launch(Run& run) {
  JobEntry& job = entry(run);
  const auto& actors = run.deployment->actor_of_rank;
  const double now = tools_.outside.now();
  tools_.table.run(job.id);
  job.phase = "text";
  job.step = job.boundary ? job.boundary->next_step : 0;
  for (JobEntry* told : entries_of(job)) {
    auto& parts = told->parts;
    if (!parts.empty() && parts.back().first_step == job.step) parts.pop_back();
    if (parts.empty() || parts.back().degrees != job.plan.degrees)
      parts.push_back({job.step, job.plan.degrees});
    if (!told->recoveries.empty() && told->recoveries.back().resumed == 0) {
      told->recoveries.back().resumed = now;
      told->recoveries.back().step = job.step;
    }
  }
  run.begun = true;
  if (run.began == 0) {
    run.began = now;
    run.first_step = job.step;
  }
  run.stats.assign(actors.size(), {});
  try {
    for (std::size_t rank = 0; rank < actors.size(); ++rank) {
      tools_.outside.send(tools_.members.at(actors[rank]).peer,
                          begin_message(job, *run.deployment, static_cast<int>(rank)));
    }
    dispatcher_.add_job(
        job.id, schedule::make_task_graph(job.plan, job.step), actors,
        {.priority = job.spec.priority, .share = share_of(job), .machine = run.deployment->id});
    if (paused(job.id)) dispatcher_.pause(job.id);
    record([&](auto& recorder, auto now_ns) {
      recorder.began(job.id, run.deployment->epoch, dispatcher_.graph(job.id), actors, now_ns);
    });
  } catch (const std::exception& error) {
    return fail_soon(job.id, {wire::FailureCode::internal,
                              std::string("the job cannot begin: ") + error.what()});
  }
  progress(job);
  pump();
}

bool JobRunner::pause(JobId id) {
  const JobEntry* job = tools_.table.find(id);
  if (!job || wire::is_terminal(job->state) || in_batch(*job) || !paused_.insert(id).second)
    return false;
  dispatcher_.pause(id);
  return true;
}

bool JobRunner::step(JobId id) {
  if (!paused(id) || !dispatcher_.step(id)) return false;
  if (Run* run = find(id)) run->clock.restart();
  pump();
  return true;
}

bool JobRunner::resume(JobId id) {
  if (paused_.erase(id) == 0) return false;
  if (Run* run = find(id)) run->clock.restart();
  dispatcher_.resume(id);
  pump();
  return true;
}

void JobRunner::pump() {
  const auto epoch_of = [this](JobId job) { return find(job)->deployment->epoch; };
  const auto issued = dispatcher_.issue();
  record([&](auto& recorder, auto now_ns) {
    for (const auto& [actor, command] : issued) {
      if (!command.receive) recorder.issued(command.job, command.task, actor, now_ns);
    }
  });
  for (const auto& mailing : schedule::mailings_of(issued, epoch_of)) {
    try {
      tools_.outside.send(tools_.members.at(mailing.actor).peer, mailing.tasks);
    } catch (const wire::WireError& error) {
      fail_soon(mailing.tasks.commands.front().job, {wire::FailureCode::internal, error.what()});
    }
  }
}

void JobRunner::task_done(cluster::ActorId actor, const wire::TaskDone& done) {
  Run* run = find(done.job);
  if (!run || !run->begun || run->deployment->epoch != done.epoch) return;
  if (!run->told.emplace(done.task, actor).second) return;
  record([&](auto& recorder, auto now_ns) { recorder.done(actor, done, now_ns); });
  if (!done.warnings.empty()) warn(*run, done.warnings);
  take_blobs(*run, actor, done);
  if (dispatcher_.has(done.job) &&
      dispatcher_.finish(done.job, done.task, actor, computing_seconds(done)))
    task_complete(*run, done.task);
  pump();
  maybe_end(*run);
}

void JobRunner::progress(JobEntry& job, std::vector<wire::BlobRef> blobs,
                         std::vector<std::string> warnings) {
  record([&](auto& recorder, auto now_ns) { recorder.phase(job.id, job.phase, now_ns); });
  for (const JobId id : tools_.table.members_of(job)) {
    JobEntry& member = *tools_.table.find(id);
    member.phase = job.phase;
    member.step = job.step;
    progress(member, {}, warnings);
  }
  if (!job.members.empty()) return;
  const Run* run = find(run_of(job.id));
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
