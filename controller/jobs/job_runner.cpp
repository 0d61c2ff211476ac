#include "controller/jobs/job_runner.h"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "controller/jobs/report.h"
#include "transport/wire/done.h"

namespace troupe::jobs {
namespace {

/// Unfinished tasks that may lie at an actor: enough to hide a control-plane round trip behind any micro-step.
constexpr int kWindow = 6;
constexpr control::Milliseconds kBlobDeadline{120'000};
constexpr control::Milliseconds kEndDeadline{30'000};
/// How long a failure that only names a peer waits for the one that names the cause.
constexpr std::chrono::milliseconds kCauseDelay{300};

}  // namespace

/// A job between its start and its end.
struct JobRunner::Run {
  explicit Run(boost::asio::io_context& io) : cause_timer(io) {}

  JobId job = 0;
  std::shared_ptr<cluster::Deployment> deployment;
  bool begun = false;    // actors were told of it
  bool ending = false;   // actors are asked for its figures
  std::size_t blobs_to_come = 0;
  std::map<std::uint32_t, std::vector<wire::BlobRef>> results;  // by decode task, so in the replicas' order
  std::vector<std::string> warnings;
  std::uint64_t blob_bytes = 0;
  std::map<std::int32_t, int> replicas_past;   // step → dp replicas that completed it
  StepClock clock;
  double began = 0;
  double text_done = 0;
  double denoised = 0;
  double decoded = 0;
  int texts_done = 0;
  std::vector<wire::ActorJobStats> stats;
  std::size_t stats_to_come = 0;
  std::optional<wire::Failure> collateral;
  boost::asio::steady_timer cause_timer;
};

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
    const auto& model = job.spec.model;
    auto deployment = tools_.deployments.find_idle(model, job.plan);
    if (!deployment) {
      const auto actors = tools_.deployments.choose_actors(job.plan.degrees.world());
      if (!actors) return;  // in order: later jobs do not overtake
      tools_.table.start(id, tools_.now());
      for (const auto actor : *actors) tools_.members.at(actor).job = id;
      auto run = std::make_unique<Run>(tools_.io);
      run->job = id;
      runs_[id] = std::move(run);
      progress(job);
      runs_[id]->deployment = tools_.deployments.load(
          model, job.plan, *actors,
          [this, id](std::shared_ptr<cluster::Deployment> loaded, const std::optional<wire::Failure>& failure) {
            deployed(id, loaded, failure);
          });
      continue;
    }
    tools_.table.start(id, tools_.now());
    for (const auto actor : deployment->actor_of_rank) tools_.members.at(actor).job = id;
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
    fail(id, *failure);
    return;
  }
  JobEntry& job = *tools_.table.find(id);
  if (job.cancel_asked) {
    finish(id, wire::JobState::cancelled, job.failure);
    return;
  }
  launch(job, deployment);
}

wire::BeginJob JobRunner::begin_message(const JobEntry& job, const cluster::Deployment& deployment, int rank) const {
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
  begin.stage = at.pp;
  begin.stages = plan.degrees.pp;
  begin.cfg_rank = at.cfg;
  begin.cfg_degree = plan.degrees.cfg;
  begin.patches = plan.patches;
  begin.decodes = rank == plan.decode_rank(at.dp);
  if (const auto* group = plan.group_with(Role::caption, rank, -1)) {
    const auto position = [&](int of) {
      return static_cast<std::int32_t>(std::find(group->ranks.begin(), group->ranks.end(), of) - group->ranks.begin());
    };
    begin.caption_group = group->id;
    begin.caption_rank = position(rank);
    begin.caption_root = position(plan.text_rank(at.dp));
  }
  const bool first = at.pp == 0;
  const bool last = at.pp + 1 == plan.degrees.pp;
  if (const auto* group = plan.group_with(first ? Role::ring : Role::edge, rank, 1)) begin.previous_group = group->id;
  if (const auto* group = plan.group_with(last ? Role::ring : Role::edge, rank, 0)) begin.next_group = group->id;
  if (const auto* group = plan.group_with(Role::cfg, rank, -1)) begin.cfg_group = group->id;
  return begin;
}

void JobRunner::launch(JobEntry& job, const std::shared_ptr<cluster::Deployment>& deployment) {
  Run& run = *find(job.id);
  tools_.table.run(job.id);
  run.begun = true;
  run.began = tools_.now();
  run.stats.resize(deployment->actor_of_rank.size());
  for (std::size_t rank = 0; rank < deployment->actor_of_rank.size(); ++rank) {
    const auto& actor = tools_.members.at(deployment->actor_of_rank[rank]);
    tools_.server.send(actor.peer, begin_message(job, *deployment, static_cast<int>(rank)));
  }
  dispatcher_.add_job(job.id, schedule::make_task_graph(job.plan), deployment->actor_of_rank);
  progress(job);
  pump();
}

void JobRunner::pump() {
  std::map<cluster::ActorId, std::map<std::uint64_t, wire::RunTasks>> batches;
  for (auto& issue : dispatcher_.issue()) {
    const auto epoch = find(issue.command.job)->deployment->epoch;
    auto& batch = batches[issue.actor][epoch];
    batch.epoch = epoch;
    batch.commands.push_back(issue.command);
  }
  for (const auto& [actor, by_epoch] : batches) {
    for (const auto& [epoch, batch] : by_epoch) tools_.server.send(tools_.members.at(actor).peer, batch);
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
  if (dispatcher_.has(done.job) && dispatcher_.finish(done.job, done.task, actor)) task_complete(*run, done.task);
  pump();
  maybe_end(done.job);
}

void JobRunner::task_complete(Run& run, std::uint32_t task_id) {
  JobEntry& job = *tools_.table.find(run.job);
  const auto& task = dispatcher_.task(run.job, task_id);
  const double now = tools_.now();
  const int replicas = job.plan.degrees.dp;
  switch (task.kind) {
    case wire::TaskKind::encode_text:
      if (++run.texts_done < replicas) return;
      run.text_done = now;
      run.clock.completed(0, now);
      job.phase = "denoising";
      progress(job);
      return;
    case wire::TaskKind::micro_step:
      if (!task.ends_step || ++run.replicas_past[task.step] < replicas) return;
      job.step = task.step + 1;
      run.clock.completed(job.step, now);
      if (job.step == job.plan.request.steps) {
        run.denoised = now;
        job.phase = "decoding";
      }
      progress(job);
      return;
    case wire::TaskKind::decode: run.decoded = now; return;
  }
}

void JobRunner::take_blobs(Run& run, cluster::ActorId actor, const wire::TaskDone& done) {
  if (done.blobs.empty() || !dispatcher_.has(run.job)) return;
  const JobId job = run.job;
  const bool passing = dispatcher_.task(job, done.task).kind != wire::TaskKind::decode;
  if (!passing) run.results[done.task].resize(done.blobs.size());
  for (std::size_t index = 0; index < done.blobs.size(); ++index) {
    const auto& ref = done.blobs[index];
    ++run.blobs_to_come;
    tools_.blob_server.fetch(tools_.members.at(actor).incarnation, ref.id, ref.bytes, kBlobDeadline,
                             [this, job, passing, task = done.task, index, ref](control::BlobResult result) {
                               if (auto own = blob_arrived(job, ref, std::move(result))) {
                                 keep_blob(job, passing ? std::nullopt : std::optional{task}, index, *own);
                               }
                             });
  }
}

std::optional<wire::BlobRef> JobRunner::blob_arrived(JobId id, const wire::BlobRef& ref, control::BlobResult result) {
  Run* run = find(id);
  if (!run) return std::nullopt;
  --run->blobs_to_come;
  if (!result) {
    fail(id, {result.failure.code, ref.name + " did not arrive from its actor: " + result.failure.what});
    return std::nullopt;
  }
  run->blob_bytes += result.bytes->size();
  wire::BlobRef own = ref;
  own.id = tools_.blobs.add(result.bytes);
  return own;
}

void JobRunner::keep_blob(JobId id, std::optional<std::uint32_t> decode_task, std::size_t index,
                          const wire::BlobRef& own) {
  if (decode_task) {
    find(id)->results[*decode_task][index] = own;
  } else {
    JobEntry& job = *tools_.table.find(id);
    job.passing.push_back(own);
    progress(job, {own});
  }
  maybe_end(id);
}

void JobRunner::maybe_end(JobId id) {
  Run* run = find(id);
  if (!run || !run->begun || run->ending || run->blobs_to_come > 0) return;
  if (dispatcher_.has(id) && dispatcher_.drained(id)) end_at_actors(*run);
}

void JobRunner::end_at_actors(Run& run) {
  run.ending = true;
  const auto& actors = run.deployment->actor_of_rank;
  run.stats_to_come = actors.size();
  for (std::size_t rank = 0; rank < actors.size(); ++rank) {
    tools_.server.request(tools_.members.at(actors[rank]).peer, wire::EndJob{run.job}, kEndDeadline,
                          [this, id = run.job, rank](const control::Reply& reply) {
                            Run* ending = find(id);
                            if (!ending) return;
                            if (!reply.ok()) {
                              fail(id, {reply.failure().code, "actor of rank " + std::to_string(rank) +
                                                                  " did not end the job: " + reply.failure().what});
                              return;
                            }
                            ending->stats[rank] = reply.as<wire::ActorJobStats>();
                            if (--ending->stats_to_come == 0) succeed(*ending);
                          });
  }
}

void JobRunner::succeed(Run& run) {
  JobEntry& job = *tools_.table.find(run.job);
  if (!dispatcher_.complete(run.job)) {
    finish(run.job, wire::JobState::cancelled, job.failure);
    return;
  }
  for (const auto& [task, blobs] : run.results) job.blobs.insert(job.blobs.end(), blobs.begin(), blobs.end());
  std::stable_partition(job.blobs.begin(), job.blobs.end(), [](const auto& blob) { return blob.name == "picture"; });
  const PhaseSeconds seconds{.queued = job.started - job.submitted,
                             .loading = run.began - job.started,
                             .text = run.text_done - run.began,
                             .denoising = run.denoised - run.text_done,
                             .decoding = run.decoded - run.denoised,
                             .total = tools_.now() - job.submitted};
  job.report = make_report(job, *run.deployment, seconds, run.stats, run.blob_bytes, run.warnings);
  finish(run.job, wire::JobState::succeeded, {});
}

void JobRunner::task_failed(cluster::ActorId actor, const wire::TaskFailed& failed) {
  Run* run = find(failed.job);
  if (!run || !run->deployment || run->deployment->epoch != failed.epoch) return;
  std::string where = "actor " + std::to_string(actor);
  if (dispatcher_.has(failed.job)) where += ", " + schedule::describe(dispatcher_.task(failed.job, failed.task));
  wire::Failure failure{failed.failure.code, where + ": " + failed.failure.what};
  if (!failed.collateral) {
    fail(failed.job, std::move(failure));
    return;
  }
  if (run->collateral) return;
  run->collateral = std::move(failure);
  run->cause_timer.expires_after(kCauseDelay);
  run->cause_timer.async_wait([this, id = failed.job](const boost::system::error_code& error) {
    Run* waiting = error ? nullptr : find(id);
    if (waiting) fail(id, *waiting->collateral);
  });
}

void JobRunner::actor_lost(cluster::ActorId actor, const std::string& cause) {
  const auto& member = tools_.members.at(actor);
  if (member.job == 0) return;
  const JobId id = member.job;
  std::string what = "actor " + std::to_string(actor) + " (pid " + std::to_string(member.pid) + ") " + cause;
  if (const auto task = doing(actor); !task.empty()) what += ", during " + task;
  fail(id, {wire::FailureCode::lost, what});
}

std::string JobRunner::doing(cluster::ActorId actor) const {
  const auto current = dispatcher_.current(actor);
  if (!current) return {};
  return "job " + std::to_string(current->first) + " " +
         schedule::describe(dispatcher_.task(current->first, current->second));
}

void JobRunner::cancel(JobId id, const std::string& why) {
  JobEntry* job = tools_.table.find(id);
  if (!job || wire::is_terminal(job->state) || job->cancel_asked) return;
  job->cancel_asked = true;
  job->failure = {wire::FailureCode::cancelled, why};
  if (job->state == wire::JobState::queued) {
    finish(id, wire::JobState::cancelled, job->failure);
    return;
  }
  dispatcher_.cancel(id);
  maybe_end(id);
}

void JobRunner::fail(JobId id, wire::Failure failure) {
  Run* run = find(id);
  if (!run) return;
  // The epoch ends with the failure: what is on its way between the actors belongs to nobody any more.
  const auto deployment = run->deployment;
  if (deployment) tools_.deployments.take_down(deployment, failure.what, tools_.kill_actor);
  finish(id, wire::JobState::failed, std::move(failure));
}

void JobRunner::finish(JobId id, wire::JobState state, wire::Failure failure) {
  if (!tools_.table.finish(id, state, std::move(failure), tools_.now())) return;
  dispatcher_.remove(id);
  runs_.erase(id);
  for (auto& [actor_id, actor] : tools_.members.all()) {
    if (actor.job == id) actor.job = 0;
  }
  JobEntry& job = *tools_.table.find(id);
  for (const auto& blob : job.passing) tools_.blobs.remove(blob.id);
  job.passing.clear();
  tools_.on_finished(job);
  for (const auto& gone : tools_.table.expire()) {
    for (const auto& blob : gone.blobs) tools_.blobs.remove(blob.id);
  }
  boost::asio::post(tools_.io, [this] { start_queued(); });
}

void JobRunner::fail_all(const std::string& why) {
  const auto waiting = tools_.table.queue();
  for (const JobId id : waiting) finish(id, wire::JobState::failed, {wire::FailureCode::cancelled, why});
  while (!runs_.empty()) fail(runs_.begin()->first, {wire::FailureCode::cancelled, why});
}

void JobRunner::progress(JobEntry& job, std::vector<wire::BlobRef> blobs, std::vector<std::string> warnings) {
  const Run* run = find(job.id);
  tools_.on_progress(job, {.job = job.id,
                           .phase = job.phase,
                           .step = job.step,
                           .steps = job.plan.request.steps,
                           .seconds_per_step = run ? run->clock.seconds_per_step() : 0,
                           .blobs = std::move(blobs),
                           .warnings = std::move(warnings)});
}

}  // namespace troupe::jobs
