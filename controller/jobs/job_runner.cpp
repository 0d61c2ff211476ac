#include "controller/jobs/job_runner.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "controller/deployments/device_kinds.h"
#include "controller/jobs/batch.h"
#include "controller/jobs/batching.h"
#include "controller/jobs/reuse_stages.h"
#include "controller/schedule/dispatcher.h"

namespace troupe::jobs {
namespace {

/// Unfinished tasks that may lie at an actor: enough to hide a control-plane round trip behind any
/// micro-step.
constexpr int kWindow = 6;
/// Seconds for which clients may still fetch the last previews and latents of a job that has ended.
constexpr double kInterimGrace = 30;

}  // namespace

JobRunner::JobRunner(Tools tools)
    : dispatcher_(kWindow),
      tools_{.environment = tools.environment,
             .members = tools.members,
             .deployments = tools.deployments,
             .table = tools.table,
             .dispatcher = dispatcher_,
             .callbacks = *this,
             .options = tools.options,
             .recorder = tools.recorder,
             .listener = &nobody_},
      plan_again_(std::move(tools.plan_again)),
      plan_batch_(std::move(tools.plan_batch)) {}

JobRunner::~JobRunner() = default;

JobRunner::RunPtr JobRunner::find(JobId run) const {
  const auto found = runs_.find(run);
  return found == runs_.end() ? nullptr : found->second;
}

std::vector<JobRunner::RunPtr> JobRunner::runs_on(const cluster::Deployment& deployment) const {
  std::vector<RunPtr> runs;
  for (const auto& [id, bytes] : deployment.jobs) {
    if (auto run = find(id)) runs.push_back(std::move(run));
  }
  return runs;
}

std::vector<JobRunner::RunPtr> JobRunner::unplaced() const {
  std::vector<RunPtr> waiting;
  for (const auto& [id, run] : runs_) {
    if (!run->deployment()) waiting.push_back(run);
  }
  return waiting;
}

JobId JobRunner::run_of(JobId id) const {
  const JobEntry* job = tools_.table.find(id);
  return job && job->batching.number != 0 ? job->batching.number : id;
}

std::vector<JobId> JobRunner::jobs_of(JobId run) const {
  return tools_.table.find_batch(run) ? tools_.table.members_of(run) : std::vector{run};
}

std::string JobRunner::name_of(JobId id) const {
  const auto run = find(id);
  return run ? run->name() : jobs_text({id});
}

std::string JobRunner::doing(cluster::ActorId actor) const {
  if (const auto current = dispatcher_.current(actor))
    return name_of(current->first) + " " +
           schedule::describe(dispatcher_.task(current->first, current->second));
  for (const auto& deployment : tools_.deployments.at(actor)) {
    if (deployment->jobs.empty() || !tools_.deployments.preparing(actor, *deployment)) continue;
    return name_of(deployment->jobs.begin()->first) +
           (deployment->connecting ? " connecting" : " loading");
  }
  return {};
}

// From the queue to a deployment.

void JobRunner::start_soon() {
  if (std::exchange(start_posted_, true)) return;
  tools_.environment.post([this] {
    start_posted_ = false;
    start_queued();
  });
}

void JobRunner::start_queued() {
  look_for_actors();
  // In order: later jobs do not overtake. Who has begun before comes first.
  for (const auto& run : unplaced()) {
    if (const auto why = check_capacity(run->entry())) {
      run->results().fail(*why);
      continue;
    }
    const auto deployment = find_deployment(run->entry());
    if (!deployment) return say_why_waiting(run->entry(), run.get());
    move_in(*run, deployment);
  }
  while (const auto id = tools_.table.first()) {
    JobEntry& job = *tools_.table.find(*id);
    if (!has_actors(job)) {
      await_actors(*id, last_loss_);
    } else if (const auto why = check_capacity(job)) {
      finish(*id, JobState::failed, *why);
    } else if (!start(job)) {
      return say_why_waiting(job, nullptr);
    }
  }
}

void JobRunner::say_why_waiting(JobEntry& first, Run* run) {
  waits_first_ = first.id;
  const auto what =
      tools_.deployments.waits_for(model_of(first.spec.model, first.fingerprint, first.plan),
                                   first.plan, tools_.options.max_jobs_per_deployment);
  if (run) {
    run->results().waits_for(what);
  } else {
    first.waits_for = what;
  }
}

std::string JobRunner::waits_for(const JobEntry& job) const {
  if (const auto awaiting = awaiting_.find(job.id); awaiting != awaiting_.end())
    return fmt::format("waits for {}, for {} s at most: {} ({})",
                       counted(job.plan.degrees.world(), "actor"), tools_.options.rejoin_deadline,
                       actors_here(job), awaiting->second.why);
  if (job.state != JobState::queued || job.held || job.id == waits_first_) return job.waits_for;
  const JobEntry* first = tools_.table.find_run(waits_first_);
  if (!first) return job.waits_for;
  const auto whom = may_meet(*first, job) ? name_of(first->id) : "another client's job";
  return "waits behind " + whom + ", which " + first->waits_for;
}

cluster::Deployments::Ptr JobRunner::find_deployment(const JobEntry& job) {
  const auto model = model_of(job.spec.model, job.fingerprint, job.plan);
  auto& deployments = tools_.deployments;
  // Idle actors compute sooner than shared ones; but what is loaded stays while it can be shared.
  auto deployment = deployments.find(model, job.plan, tools_.options.max_jobs_per_deployment);
  if (deployment && deployment->jobs.empty()) return deployment;
  using Beside = cluster::Deployments::Beside;
  auto actors = deployments.choose_actors(job.plan, Beside::nothing);
  if (!actors)
    actors =
        deployments.choose_actors(job.plan, deployment ? Beside::keep_loaded : Beside::evict_idle);
  return actors ? deployments.load(model, job.plan, std::move(*actors)) : deployment;
}

bool JobRunner::has_place(const JobEntry& job) const {
  const auto& deployments = tools_.deployments;
  return deployments.find(model_of(job.spec.model, job.fingerprint, job.plan), job.plan,
                          tools_.options.max_jobs_per_deployment) ||
         deployments.choose_actors(job.plan, cluster::Deployments::Beside::evict_idle);
}

bool JobRunner::start(JobEntry& job) {
  if (start_batch(job)) return true;
  auto alone = why_not_batched(job);
  const auto deployment = find_deployment(job);
  if (!deployment) return false;
  job.batching.why_not = std::move(alone);
  tools_.table.start(job.id, tools_.environment.now());
  add_run(job, std::make_unique<OwnResults>(tools_, job), deployment);
  return true;
}

std::vector<const JobEntry*> JobRunner::waiting_with(const JobEntry& first) const {
  std::vector<const JobEntry*> waiting{&first};
  for (const JobId id : tools_.table.queue()) {
    const JobEntry* job = tools_.table.find(id);
    if (id != first.id && !stops_alone(id) && may_meet(first, *job)) waiting.push_back(job);
  }
  return waiting;
}

std::string JobRunner::batching_obstacle(const wire::ImageRequest& request) const {
  return jobs::batching_obstacle(request, tools_.options.max_batch);
}

std::string JobRunner::why_not_batched(const JobEntry& first) const {
  if (!first.spec.may_batch || !has_place(first)) return "";
  if (stops_alone(first.id)) return "it was paused, or had a breakpoint, when it began";
  auto others = waiting_with(first);
  others.erase(others.begin());
  return jobs::why_not_batched(first, others, tools_.options.max_batch,
                               tools_.deployments.places_for(first.plan));
}

bool JobRunner::start_batch(const JobEntry& first) {
  if (!plan_batch_ || tools_.options.max_batch < 2 || !can_batch(first) || stops_alone(first.id) ||
      !has_place(first))
    return false;
  // Where several could begin side by side, that is sooner for all of them.
  auto jobs = companions(waiting_with(first), tools_.options.max_batch,
                         tools_.deployments.places_for(first.plan));
  for (; jobs.size() > 1; jobs.pop_back()) {
    BatchEntry together;
    try {
      together = batch_of(jobs, plan_batch_(first, combined_request(jobs)));
    } catch (const std::invalid_argument&) {
      continue;  // too much text for one request
    }
    const auto& plan = together.run.plan;
    if (plan.degrees != first.plan.degrees || tools_.deployments.shortage(plan)) continue;
    const auto deployment = find_deployment(together.run);
    if (!deployment) continue;
    BatchEntry& batch = tools_.table.join(std::move(together), tools_.environment.now());
    auto results = std::make_unique<Batch>(tools_, batch);
    tools_.record([&](auto& recorder, auto now_ns) {
      const auto id = batch.run.id;
      recorder.joined(id, results->name(), jobs_text(tools_.table.members_of(id)), now_ns);
    });
    add_run(batch.run, std::move(results), deployment);
    return true;
  }
  return false;
}

JobRunner::RunPtr JobRunner::batch_with(const JobEntry& job) const {
  const auto number = job.batching.number;
  return number != 0 && !has_ended(job.state) ? find(number) : nullptr;
}

void JobRunner::add_run(JobEntry& entry, std::unique_ptr<Results> results,
                        const cluster::Deployments::Ptr& deployment) {
  const auto run = std::make_shared<Run>(tools_, entry, std::move(results));
  runs_[entry.id] = run;
  move_in(*run, deployment);
}

void JobRunner::move_in(Run& run, const cluster::Deployments::Ptr& deployment) {
  run.move_in(deployment);
  if (deployment->state == cluster::Deployment::State::ready) {
    begin(run);
  } else {
    run.results().progress({});
  }
}

void JobRunner::deployment_ready(const cluster::Deployments::Ptr& deployment) {
  for (const auto& run : runs_on(*deployment)) {
    if (!run->has_begun()) begin(*run);
  }
}

void JobRunner::begin(Run& run) {
  try {
    const auto stop = paused_.find(run.id());
    run.begin(stop == paused_.end() ? std::nullopt : std::optional(stop->second));
    if (watched_.contains(run.id())) run.watch();
  } catch (const std::exception& error) {
    return fail_soon(run.id(), {wire::FailureCode::internal,
                                std::string("the job cannot begin: ") + error.what()});
  }
  run.results().progress({});
  pump();
}

// Tasks.

void JobRunner::pump() {
  const auto epoch_of = [this](JobId job) { return runs_.at(job)->deployment()->epoch; };
  const auto issued = dispatcher_.issue();
  if (issued.empty()) return;
  tools_.record([&](auto& recorder, auto now_ns) {
    for (const auto& [actor, command] : issued) {
      if (!command.receive) recorder.issued(command.job, command.task, actor, now_ns);
    }
  });
  for (const auto& message : schedule::outbox_messages(issued, epoch_of)) {
    try {
      tools_.environment.send(tools_.members.at(message.actor).peer, message.tasks);
    } catch (const wire::WireError& error) {
      fail_soon(message.tasks.commands.front().job, {wire::FailureCode::internal, error.what()});
    }
  }
}

void JobRunner::pump_soon() {
  if (std::exchange(pump_posted_, true)) return;
  tools_.environment.post([this] {
    pump_posted_ = false;
    pump();
  });
}

void JobRunner::task_done(cluster::ActorId actor, const wire::TaskDone& done) {
  const auto run = find(done.job);
  if (!run || !run->is_in_epoch(done.epoch) || !run->task_done(actor, done)) return;
  pump_soon();
  run->end_if_drained();
}

void JobRunner::task_failed(cluster::ActorId actor, const wire::TaskFailed& failed) {
  const auto run = find(failed.job);
  if (!run) {
    if (failed.goes_on) return;
    // The actor does nothing more of that epoch; others may still count on it.
    for (const auto& deployment : tools_.deployments.at(actor)) {
      if (deployment->epoch == failed.epoch)
        end_epoch(deployment, failed.failure, /*culprit=*/failed.job);
    }
    return;
  }
  if (!run->is_in_epoch(failed.epoch)) return;
  std::string where = fmt::format("actor {}", actor);
  if (failed.begin) {
    where += ", begin";
  } else if (dispatcher_.has(failed.job) &&
             failed.task < dispatcher_.graph(failed.job).tasks.size()) {
    where += ", " + schedule::describe(dispatcher_.task(failed.job, failed.task));
  }
  wire::Failure failure{failed.failure.code, where + ": " + failed.failure.what};
  tools_.record([&](auto& recorder, auto now_ns) {
    recorder.failed(failed.job, actor, failure.what, now_ns);
  });
  if (failed.goes_on && watched_.contains(failed.job)) {
    if (run->meet(std::move(failure))) pause(failed.job);
  } else if (failed.collateral) {
    run->fail_later(std::move(failure));
  } else {
    fail(failed.job, failure);
  }
}

bool JobRunner::pause(JobId id, int last_step) {
  const JobEntry* job = tools_.table.find(id);
  if (!job || has_ended(job->state) || batch_with(*job)) return false;
  const auto [stop, fresh] = paused_.try_emplace(id, last_step);
  if (!fresh && std::exchange(stop->second, last_step) == last_step) return false;
  dispatcher_.pause(id, last_step);
  if (const auto run = find(id)) run->restart_clock();
  pump();
  return true;
}

bool JobRunner::step(JobId id) {
  if (!paused(id) || !dispatcher_.step(id)) return false;
  if (const auto run = find(id)) run->restart_clock();
  pump();
  return true;
}

bool JobRunner::resume(JobId id) {
  if (paused_.erase(id) == 0) return false;
  const auto run = find(id);
  if (run && run->met()) {
    fail(id, wire::Failure(*run->met()));
    return true;
  }
  if (run) run->restart_clock();
  dispatcher_.resume(id);
  pump();
  return true;
}

bool JobRunner::stop_at_not_finite(JobId id) {
  const JobEntry* job = tools_.table.find(id);
  if (!job || has_ended(job->state) || batch_with(*job) || !met(id).empty()) return false;
  const auto run = find(id);
  if (watched_.insert(id).second && run && run->has_begun()) run->watch();
  resume(id);
  return true;
}

std::string JobRunner::met(JobId id) const {
  const auto run = find(id);
  return run && run->met() ? run->met()->what : "";
}

void JobRunner::tell(JobEntry& job, StepBlobs interim, std::vector<std::string> warnings) {
  tools_.record([&](auto& recorder, auto now_ns) { recorder.phase(job.id, job.phase, now_ns); });
  const auto run = find(run_of(job.id));
  try {
    tools_.listener->progress(job, {.job = job.id,
                                    .phase = job.phase,
                                    .step = job.step,
                                    .steps = job.plan.request.steps,
                                    .seconds_per_step = run ? run->seconds_per_step() : 0,
                                    .blobs = std::move(interim.blobs),
                                    .blobs_step = interim.step,
                                    .warnings = std::move(warnings),
                                    .timestep = job.timestep});
  } catch (const wire::WireError& error) {
    fail_soon(job.id, {wire::FailureCode::internal,
                       std::string("its progress cannot be sent: ") + error.what()});
  }
}

// Losses.

void JobRunner::actor_lost(cluster::ActorId actor, const std::string& cause) {
  const auto& member = tools_.members.at(actor);
  std::string what = fmt::format("actor {} (pid {}) {}", actor, member.pid, cause);
  const auto kept = tools_.deployments.at(actor);
  if (kept.empty()) return;
  const auto current = dispatcher_.current(actor);
  const auto task = doing(actor);
  if (!task.empty()) {
    what += ", during " + task;
  } else if (!member.jobs.empty()) {
    const auto run = find(*member.jobs.begin());
    what += ", during " + run->name() + " " + to_string(run->entry().phase);
  }
  for (const auto& deployment : kept) {
    end_epoch(deployment, {wire::FailureCode::lost, what},
              current ? std::optional(current->first) : std::nullopt,
              tools_.deployments.preparing(actor, *deployment));
  }
}

void JobRunner::interrupt_jobs(const cluster::Deployments::Ptr& deployment,
                               const std::string& why) {
  end_epoch(deployment, {wire::FailureCode::lost, why}, /*culprit=*/JobId{0});
}

void JobRunner::end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                          std::optional<JobId> culprit) {
  end_epoch(deployment, why, culprit, /*while_preparing=*/false);
}

void JobRunner::end_epoch(const cluster::Deployments::Ptr& deployment, const wire::Failure& why,
                          std::optional<JobId> culprit, bool while_preparing) {
  bool wanted = false;
  for (const auto& [id, bytes] : std::map(deployment->jobs)) {
    const auto run = find(id);
    if (!run) continue;
    // Of several deaths at once the first ends the epoch, and only that one counts.
    const bool counts = run->has_begun() ? !culprit || *culprit == id : while_preparing;
    if (run->interrupt(why, counts)) wanted = true;
  }
  // What nobody waits for does not connect its groups in the midst of others' jobs.
  const bool kept =
      tools_.deployments.all_ready(*deployment) && !tools_.deployments.shares_actors(*deployment);
  if (wanted || kept) {
    tools_.deployments.begin_anew(deployment, why.what);
  } else {
    tools_.deployments.take_down(deployment, why.what);
  }
}

void JobRunner::fail_soon(JobId id, wire::Failure failure) {
  tools_.environment.post([this, id, failure = std::move(failure)] { fail(id, failure); });
}

void JobRunner::fail(JobId id, const wire::Failure& failure) {
  const auto run = find(id);
  if (!run) {
    // One of a batch fails by itself where it alone cannot be told of.
    const JobEntry* job = tools_.table.find(id);
    if (job && batch_with(*job)) finish(id, JobState::failed, failure);
    return;
  }
  const auto deployment = run->deployment();
  const bool begun = run->has_begun();
  const auto name = run->name();
  if (run->entry().cancel_asked) {
    run->results().end(JobState::cancelled, run->entry().failure);
  } else {
    run->results().fail(failure);
  }
  // What is on its way between the actors belongs to nobody any more.
  if (begun) {
    end_epoch(deployment, {failure.code, name + " failed: " + failure.what}, /*culprit=*/id);
  } else if (deployment && deployment->jobs.empty()) {
    tools_.deployments.take_down(deployment, failure.what);
  }
}

// Places lost for good.

bool JobRunner::all_fit_elsewhere(const cluster::Deployment& deployment) const {
  const auto living = cluster::most_alike(tools_.members, deployment.weight_dtype);
  const auto runs = runs_on(deployment);
  return std::ranges::all_of(runs, [&](const auto& run) {
    const auto& job = run->entry();
    if (!job.spec.elastic || !plan_again_ || living < 1) return false;
    if (job.plan.degrees.world() <= living && !tools_.deployments.shortage(job.plan)) return true;
    try {
      return !tools_.deployments.shortage(plan_again_(job, living));
    } catch (const std::invalid_argument&) {
      return false;
    }
  });
}

void JobRunner::deployment_failed(const cluster::Deployments::Ptr& deployment,
                                  const wire::Failure& failure) {
  const bool place_lost = std::ranges::any_of(
      deployment->actor_of_rank, [&](auto id) { return !tools_.members.at(id).lasting(); });
  const auto runs = runs_on(*deployment);
  const int survivors = survivors_of(runs, deployment->weight_dtype);
  for (const auto& run : runs) {
    if (find(run->id()) != run || run->deployment() != deployment) continue;
    if (run->has_begun() && !run->interrupt(failure, /*counts=*/true)) continue;
    if (!place_lost || !move_out(*run, survivors)) run->results().end(JobState::failed, failure);
  }
  start_soon();
}

void JobRunner::actor_free(cluster::ActorId) {
  start_soon();
}

int JobRunner::survivors_of(const std::vector<RunPtr>& runs, WeightChoice weight_dtype) const {
  struct Kind {
    int free = 0;
    int all = 0;
  };
  std::map<DeviceKind, Kind> kinds;
  for (const auto& [id, actor] : tools_.members.all()) {
    const auto kind = actor.device_kind();
    if (!actor.usable() || !cluster::has_products_of(kind, weight_dtype)) continue;
    ++kinds[kind].all;
    kinds[kind].free += std::ranges::all_of(
        actor.jobs, [&](auto job) { return std::ranges::find(runs, job, &Run::id) != runs.end(); });
  }
  Kind most;
  for (const auto& [name, kind] : kinds)
    most = {std::max(most.free, kind.free), std::max(most.all, kind.all)};
  return most.free > 0 ? most.free : most.all;
}

bool JobRunner::fit(JobEntry& job, int actors) {
  if (!job.spec.elastic || !plan_again_ || actors < 1) return false;
  if (job.plan.degrees.world() <= actors) return true;
  try {
    job.plan = plan_again_(job, actors);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

std::optional<wire::Failure> JobRunner::check_capacity(JobEntry& job) {
  const auto lack = tools_.deployments.shortage(job.plan);
  if (!lack) return std::nullopt;
  if (job.spec.elastic && plan_again_) {
    try {
      auto plan =
          plan_again_(job, cluster::most_alike(tools_.members, job.plan.request.weight_dtype));
      if (!tools_.deployments.shortage(plan)) {
        job.plan = std::move(plan);
        return std::nullopt;
      }
    } catch (const std::invalid_argument&) {
    }
  }
  return wire::Failure{
      wire::FailureCode::out_of_memory,
      fmt::format("rank {} needs {}, and the roomiest actor that is left for it, {}, may hold {}",
                  lack->rank, bytes_text(lack->needs), tools_.members.name_of(lack->actor),
                  bytes_text(lack->limit))};
}

bool JobRunner::move_out(Run& run, int survivors) {
  const int before = run.entry().plan.degrees.world();
  if (!fit(run.entry(), survivors)) return false;
  run.move_out();
  if (const int now = run.entry().plan.degrees.world(); now != before)
    run.note(fmt::format("it goes on with {} instead of {}", counted(now, "actor"), before));
  return true;
}

bool JobRunner::has_actors(JobEntry& job) {
  const int living = cluster::most_alike(tools_.members, job.plan.request.weight_dtype);
  return job.plan.degrees.world() <= living || fit(job, living);
}

void JobRunner::places_lost(const std::string& why) {
  last_loss_ = why;
  for (const JobId id : tools_.table.queue()) {
    JobEntry& job = *tools_.table.find(id);
    if (!has_actors(job) || check_capacity(job)) await_actors(id, why);
  }
  for (const auto& run : unplaced()) {
    if (!has_actors(run->entry()))
      run->results().end(JobState::failed, {wire::FailureCode::lost, why});
  }
  start_soon();
}

void JobRunner::await_actors(JobId id, const std::string& why) {
  if (!tools_.table.hold(id, "")) return;
  const double until = tools_.environment.now() + tools_.options.rejoin_deadline;
  awaiting_[id] = {why, until};
  if (tools_.options.rejoin_deadline <= 0) return stop_awaiting(id);
  tools_.environment.after(tools_.options.rejoin_deadline, [this, id, until] {
    const auto awaiting = awaiting_.find(id);
    if (awaiting != awaiting_.end() && awaiting->second.until == until) stop_awaiting(id);
  });
  start_soon();
}

void JobRunner::look_for_actors() {
  if (awaiting_.empty() || sizes_unknown()) return;
  std::erase_if(awaiting_, [&](const auto& entry) {
    const JobEntry* job = tools_.table.find(entry.first);
    if (!job || job->state != JobState::queued) return true;
    const int living = cluster::most_alike(tools_.members, job->plan.request.weight_dtype);
    return job->plan.degrees.world() <= living && !tools_.deployments.shortage(job->plan) &&
           tools_.table.let_go(job->id);
  });
}

void JobRunner::stop_awaiting(JobId id) {
  const auto why = awaiting_.extract(id).mapped().why;
  JobEntry* job = tools_.table.find(id);
  if (!job || job->state != JobState::queued) return;
  auto failure = check_capacity(*job);
  if (!has_actors(*job)) {
    const auto seconds = tools_.options.rejoin_deadline;
    auto text = fmt::format("{}: the job needs {}, {}", why,
                            counted(job->plan.degrees.world(), "actor"), actors_here(*job));
    if (seconds > 0)
      text += fmt::format(", and no others came within {} s (start --rejoin-deadline)", seconds);
    failure = {wire::FailureCode::lost, text};
  }
  if (failure) return finish(id, JobState::failed, *failure);
  tools_.table.let_go(id);
  start_soon();
}

bool JobRunner::sizes_unknown() const {
  return std::ranges::any_of(tools_.members.all(), [](const auto& member) {
    const auto& actor = member.second;
    return actor.state == ActorState::starting && actor.accepts_jobs() && !actor.memory_limit;
  });
}

std::string JobRunner::actors_here(const JobEntry& job) const {
  const int living = cluster::most_alike(tools_.members, job.plan.request.weight_dtype);
  return fmt::format("{} {} here{}", living, living == 1 ? "is" : "are",
                     job.plan.degrees.world() > living ? ""
                     : sizes_unknown()                 ? ", some still starting"
                                                       : ", too small for it");
}

// Ends.

void JobRunner::cancel(JobId id, const std::string& why) {
  JobEntry* job = tools_.table.find(id);
  if (!job || has_ended(job->state) || job->cancel_asked) return;
  const wire::Failure cause{wire::FailureCode::cancelled, why};
  if (batch_with(*job)) return finish(id, JobState::cancelled, cause);
  if (const auto run = find(id)) return run->cancel(why);
  job->cancel_asked = true;
  finish(id, JobState::cancelled, cause);
}

void JobRunner::cancel_again(JobId id) {
  const JobEntry* job = tools_.table.find(id);
  if (job && job->state == JobState::queued)
    finish(id, JobState::cancelled, wire::Failure(job->failure));
}

void JobRunner::give_up(JobId id, const wire::Failure& why) {
  const JobEntry* job = tools_.table.find(id);
  if (job && job->state == JobState::queued) finish(id, JobState::failed, why);
}

void JobRunner::finish(JobId id, JobState state, wire::Failure failure) {
  JobEntry* job = tools_.table.find(id);
  if (!job || has_ended(job->state)) return;
  const auto batch = batch_with(*job);
  if (batch) batch->results().leaving(*job);
  if (failure.what.size() > kLongestCause) failure.what.resize(kLongestCause);
  if (!tools_.table.finish(id, state, std::move(failure), tools_.environment.now())) return;
  dispatcher_.remove(id);
  tools_.record(
      [&](auto& recorder, auto now_ns) { recorder.ended(id, state, job->failure.what, now_ns); });
  if (state == JobState::failed) tools_.listener->failing(*job);
  drop_run(id);
  drop_boundary(*job, tools_.environment);
  forget_interim(*job);
  tools_.listener->finished(*job);
  expire();
  if (batch && batch->results().is_left()) batch->cancel("none of its jobs is left");
  start_soon();
}

void JobRunner::close(JobId id, JobState state, const std::string& why) {
  dispatcher_.remove(id);
  tools_.record([&](auto& recorder, auto now_ns) { recorder.closed(id, state, why, now_ns); });
  drop_run(id);
  tools_.table.dissolve(id);
  start_soon();
}

void JobRunner::drop_run(JobId id) {
  if (const auto run = find(id)) run->release();
  runs_.erase(id);
  paused_.erase(id);
  watched_.erase(id);
}

void JobRunner::forget_interim(JobEntry& job) {
  auto& interim = job.outcome.interim;
  tools_.environment.after(kInterimGrace, [this, interim = std::move(interim)] {
    for (const auto& step : interim) {
      for (const auto& blob : step)
        tools_.environment.drop_blob(blob.id);
    }
  });
  interim.clear();
}

void JobRunner::expire() {
  for (const auto& gone : tools_.table.expire()) {
    for (const auto& blob : gone.outcome.blobs)
      tools_.environment.drop_blob(blob.id);
    tools_.listener->forgotten(gone);
  }
}

void JobRunner::fail_all(const wire::Failure& why) {
  auto waiting = tools_.table.queue();
  for (const auto& [id, awaiting] : std::exchange(awaiting_, {}))
    waiting.push_back(id);
  for (const JobId id : waiting)
    finish(id, JobState::failed, why);
  while (!runs_.empty()) {
    const auto run = runs_.begin()->second;
    const auto deployment = run->deployment();
    run->results().end(JobState::failed, why);
    if (deployment) tools_.deployments.take_down(deployment, why.what);
  }
}

}  // namespace troupe::jobs
