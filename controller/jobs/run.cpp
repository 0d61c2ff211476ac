#include "controller/jobs/run.h"

#include <algorithm>

#include "base/format.h"
#include "controller/jobs/replan.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/inspect_messages.h"
#include "transport/wire/session.h"

namespace troupe::jobs {

namespace {

/// Makes the message that tells the actor of a rank that the job begins there, at its first step or
/// at its boundary.
wire::BeginJob begin_message(const JobEntry& job, const std::string& name,
                             const cluster::Deployment& deployment, int rank) {
  using Role = plan::GroupPlan::Role;
  const auto& plan = job.plan;
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  wire::BeginJob begin;
  begin.job = job.id;
  begin.name = name;
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
  for (int step = 0; step < plan.request.steps; ++step)
    begin.steps.push_back(plan.step_kind(step));
  begin.micro_steps = plan.micro_steps;
  begin.batch_parts = plan.batch_parts[at.dp];
  begin.decode_parts = plan.decode_parts[at.dp];
  begin.sampler_steps = plan.sampler_steps;
  begin.skipped_steps = plan.skipped_steps;
  begin.keep_encoders = deployment.encoders.at(static_cast<std::size_t>(rank)) > 0;
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
    for (const int encoder : plan.encoder_ranks(at.dp))
      begin.encoder_ranks.push_back(position(group->ranks, encoder));
    begin.image_root = position(group->ranks, plan.decode_rank(at.dp));
  }
  begin.encoder_ranks.resize(plan.encoder_places.size());  // without a group it is this one
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
                  .vae = id_of(Role::vae),
                  .skips_from = {},
                  .skips_to = {}};
  for (const auto& group : plan.groups) {
    if (group.role != Role::skip) continue;
    // A plan has them by sender, then by receiver.
    const int sender = group.ranks[0], receiver = group.ranks[1];
    auto& from = begin.groups.skips_from;
    if (receiver == rank)
      from.insert(from.begin(), {group.id, mesh.coordinates(sender).pp, group.channels});
    if (sender == rank)
      begin.groups.skips_to.push_back({group.id, mesh.coordinates(receiver).pp, group.channels});
  }
  if (const auto& boundary = job.course.boundary) {
    begin.first_step = boundary->next_step;
    for (const auto& piece : boundary->pieces) {
      if (piece.first_image < begin.last_image && begin.first_image < piece.last_image)
        begin.boundary.push_back(piece);
    }
  }
  return begin;
}

constexpr control::Milliseconds kBlobDeadline{120'000};
constexpr control::Milliseconds kEndDeadline{30'000};
/// Tasks of a cancelled job that take longer, in seconds, are left in their midst.
constexpr double kDrainWithin = 0.4;
/// Seconds within which a living actor says what it has met itself; also the interval at which it
/// is looked whether an actor that has lost its link has ended.
constexpr double kCauseDelay = 0.3;
/// Deadline for a sign of life: an actor that is asked for one and gives none until then hangs.
/// Longer than the silence after which a link is lost (docs/failures.md).
constexpr control::Milliseconds kRollDeadline{8000};
/// Seconds within which several losses of a run that waits count as one. A place whose process ends
/// soon after its start gets the next one later than that.
constexpr double kOneLoss = 0.5;
const std::string kBoundary = "boundary";

/// Returns the seconds of a task without its waits; nothing where the actor did not say.
std::optional<double> computing_seconds(const wire::TaskDone& done) {
  std::int64_t ns = done.ran.end_ns - done.ran.begin_ns;
  for (const auto& wait : done.waits)
    ns -= wait.end_ns - wait.begin_ns;
  if (ns <= 0) return std::nullopt;
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

void drop_boundary(JobEntry& job, cluster::Environment& environment) {
  auto& boundary = job.course.boundary;
  if (!boundary) return;
  for (const auto& piece : boundary->pieces)
    environment.drop_blob(piece.blob.id);
  boundary.reset();
}

Run::Run(RunTools& tools, JobEntry& entry, std::unique_ptr<Results> results)
    : tools_(tools), id_(entry.id), entry_(entry), results_(std::move(results)) {}

// Its deployment.

void Run::move_in(const cluster::Deployments::Ptr& deployment) {
  results_->waits_for("");
  tools_.deployments.enter(deployment, id_, entry_.plan);
  deployment_ = deployment;
}

void Run::move_out() {
  tools_.deployments.leave(deployment_, id_);
  deployment_ = nullptr;
}

void Run::begin(std::optional<int> last_step) {
  const auto& actors = deployment_->actor_of_rank;
  const double now = tools_.environment.now();
  tools_.table.run(id_);
  const auto& boundary = entry_.course.boundary;
  entry_.phase = JobPhase::text;
  advance_to(boundary ? boundary->next_step : 0);
  for (JobEntry* told : results_->entries()) {
    auto& parts = told->course.parts;
    auto& recoveries = told->course.recoveries;
    if (!parts.empty() && parts.back().first_step == entry_.step) parts.pop_back();
    if (parts.empty() || parts.back().degrees != entry_.plan.degrees)
      parts.push_back({entry_.step, entry_.plan.degrees});
    if (!recoveries.empty() && recoveries.back().resumed == 0) {
      recoveries.back().resumed = now;
      recoveries.back().step = entry_.step;
    }
  }
  state_ = State::computing;
  if (began_ == 0) {
    began_ = now;
    first_step_ = entry_.step;
  }
  stats_.assign(actors.size(), {});
  find_holders();
  for (std::size_t rank = 0; rank < actors.size(); ++rank) {
    tools_.environment.send(tools_.members.at(actors[rank]).peer,
                            begin_message(entry_, name(), *deployment_, static_cast<int>(rank)));
  }
  tools_.dispatcher.add_job(id_, schedule::make_task_graph(entry_.plan, entry_.step), actors,
                            {.priority = entry_.spec.priority,
                             .share = share_of(entry_),
                             .machine = deployment_->kind()});
  told_.assign(tools_.dispatcher.graph(id_).tasks.size() * actors.size(), false);
  if (last_step) tools_.dispatcher.pause(id_, *last_step);
  tools_.record([&](auto& recorder, auto now_ns) {
    recorder.began(id_, deployment_->epoch, tools_.dispatcher.graph(id_), actors, now_ns);
  });
}

// Its tasks, and what they leave.

bool Run::task_done(cluster::ActorId actor, const wire::TaskDone& done) {
  const auto& parts = tools_.members.at(actor).parts;
  const auto rank = parts.find(deployment_->id);
  const auto ranks = deployment_->actor_of_rank.size();
  if (rank == parts.end() || done.task >= told_.size() / ranks) return false;
  auto told = told_[done.task * ranks + static_cast<std::size_t>(rank->second)];
  if (told) return false;
  told = true;
  tools_.record([&](auto& recorder, auto now_ns) { recorder.done(actor, done, now_ns); });
  if (!done.warnings.empty()) results_->warn(done.warnings);
  fetch_blobs(actor, done);
  auto& dispatcher = tools_.dispatcher;
  if (done.timestep && dispatcher.has(id_))
    timesteps_[dispatcher.task(id_, done.task).step] = *done.timestep;
  if (dispatcher.finish(id_, done.task, actor, computing_seconds(done)))
    task_complete(dispatcher.task(id_, done.task));
  return true;
}

void Run::task_complete(const schedule::Task& task) {
  JobEntry& job = entry_;
  const double now = tools_.environment.now();
  const int replicas = job.plan.degrees.dp;
  switch (task.kind) {
    case wire::TaskKind::encode_text:
      if (++texts_done_ < replicas) return;
      if (text_done_ == 0) text_done_ = now;
      // Taken up after its last step.
      if (denoised_ == 0 && job.step == job.plan.request.steps) denoised_ = now;
      job.phase = JobPhase::denoising;
      results_->progress({});
      return;
    case wire::TaskKind::micro_step:
      if (!task.ends_step || ++replicas_past_[task.step] < replicas) return;
      advance_to(task.step + 1);
      // A warm-up says nothing of the steps by patches after it.
      if (job.step > job.plan.synchronous_steps ||
          job.plan.synchronous_steps == job.plan.request.steps)
        clock_.completed(job.step, now);
      results_->progress({});
      if (job.step == job.plan.request.steps) {
        denoised_ = now;
        job.phase = JobPhase::decoding;
        results_->progress({});
      }
      return;
    case wire::TaskKind::decode:
      decoded_ = now;
      return;
  }
}

void Run::advance_to(std::int32_t step) {
  entry_.step = step;
  const auto last = timesteps_.find(step - 1);
  entry_.timestep = last == timesteps_.end() ? std::nullopt : std::optional(last->second);
}

void Run::fetch_blobs(cluster::ActorId actor, const wire::TaskDone& done) {
  const auto& dispatcher = tools_.dispatcher;
  if (done.blobs.empty() || !dispatcher.has(id_) || entry_.cancel_asked) return;
  if (done.task >= dispatcher.graph(id_).tasks.size()) return;
  const auto& member = tools_.members.at(actor);
  const auto& task = dispatcher.task(id_, done.task);
  const auto rank = member.parts.at(deployment_->id);
  const bool result = task.kind == wire::TaskKind::decode;
  const auto& parts = entry_.plan.decode_parts.at(static_cast<std::size_t>(task.dp));
  Origin from{.task = done.task, .step = task.step, .replica = task.dp, .result = result};
  if (result) from.first = parts.at(static_cast<std::size_t>(task.part)).begin;
  for (const auto& ref : done.blobs) {
    ++blobs_to_come_;
    tools_.environment.fetch_blob(
        member.incarnation, ref, kBlobDeadline,
        if_current([from, rank, ref](Run& run, const control::BlobResult& blob) {
          run.blob_arrived(from, rank, ref, blob);
        }));
    ++from.index;
  }
}

void Run::blob_arrived(const Origin& from, std::int32_t rank, const wire::BlobRef& ref,
                       const control::BlobResult& result) {
  --blobs_to_come_;
  if (entry_.cancel_asked) {
    // Nobody wants it any more.
  } else if (!result) {
    blob_missing(ref, from.result, result.failure);
  } else {
    blob_bytes_ += result.bytes->size();
    wire::BlobRef own = ref;
    own.id = tools_.environment.keep_blob(result.bytes);
    if (ref.name == kBoundary) {
      keep_piece(from.step, rank, own);
    } else {
      results_->take(from, own, *result.bytes);
    }
  }
  if (state_ != State::over) end_if_drained();
}

void Run::blob_missing(const wire::BlobRef& ref, bool needed, const wire::Failure& why) {
  // Of a boundary the actor keeps the newest only.
  if (ref.name == kBoundary) return;
  const std::string what = ref.name + " did not arrive from its actor: " + why.what;
  if (!needed) return note(what);
  if (why.code == wire::FailureCode::lost) return fail_later({why.code, what});
  tools_.callbacks.fail(id_, {why.code, what});
}

void Run::keep_piece(std::int32_t step, std::int32_t rank, const wire::BlobRef& own) {
  const auto& plan = entry_.plan;
  auto& boundary = entry_.course.boundary;
  if (met_ || (boundary && boundary->next_step > step)) return tools_.environment.drop_blob(own.id);
  auto& pieces = pieces_[step];
  if (const auto held = held_rows_.find(rank); held != held_rows_.end()) {
    const auto& [dp, rows] = held->second;
    pieces[rank] = {own, plan.images[dp].begin, plan.images[dp].end, rows};
  }
  if (pieces.size() < holders_) return;
  drop_boundary(entry_, tools_.environment);
  boundary = Boundary{.next_step = step + 1, .pieces = {}};
  for (auto& [holder, piece] : pieces)
    boundary->pieces.push_back(std::move(piece));
  pieces_.erase(step);
  while (!pieces_.empty() && pieces_.begin()->first < step) {
    drop(pieces_.begin()->second);
    pieces_.erase(pieces_.begin());
  }
  losses_ = 0;
  results_->boundary_kept();
}

void Run::find_holders() {
  const auto& plan = entry_.plan;
  held_rows_.clear();
  holders_ = 0;
  for (int dp = 0; dp < plan.degrees.dp; ++dp) {
    const auto holders = plan.latent_holders(dp);
    for (std::size_t sp = 0; sp < holders.size(); ++sp) {
      auto rows = plan::rows_of_rank(plan, static_cast<int>(sp));
      holders_ += rows.empty() ? 0 : 1;
      held_rows_[holders[sp]] = {dp, std::move(rows)};
    }
  }
}

void Run::drop(const std::map<std::int32_t, wire::BoundaryPiece>& pieces) {
  for (const auto& [rank, piece] : pieces)
    tools_.environment.drop_blob(piece.blob.id);
}

void Run::drop_blobs() {
  results_->drop();
  for (const auto& [step, pieces] : pieces_)
    drop(pieces);
  pieces_.clear();
}

void Run::note(const std::string& warning) {
  warnings_.push_back(warning);
  results_->progress({warning});
}

// Its end.

void Run::end_if_drained() {
  if (state_ != State::computing || collateral_ || (met_ && !entry_.cancel_asked)) return;
  // Of a cancelled job nothing is awaited but what its actors are doing: they let go of its blobs.
  if (blobs_to_come_ > 0 && !entry_.cancel_asked) return;
  if (tools_.dispatcher.has(id_) && tools_.dispatcher.drained(id_)) ask_for_figures();
}

void Run::ask_for_figures() {
  state_ = State::ending;
  const auto& actors = deployment_->actor_of_rank;
  stats_to_come_ = actors.size();
  for (std::size_t rank = 0; rank < actors.size(); ++rank) {
    tools_.environment.request(
        tools_.members.at(actors[rank]).peer, wire::EndJob{id_}, kEndDeadline,
        if_current([rank](Run& run, const control::Reply& reply) {
          if (reply.ok()) {
            run.stats_[rank] = reply.as<wire::ActorJobStats>();
          } else {
            run.warnings_.push_back(
                fmt::format("the figures of rank {} are missing: {}", rank, reply.failure().what));
          }
          if (--run.stats_to_come_ == 0) run.succeed();
        }));
  }
}

void Run::succeed() {
  // Since it was asked to end, results that arrived were let go of.
  if (entry_.cancel_asked || !tools_.dispatcher.complete(id_))
    return results_->end(JobState::cancelled, entry_.failure);
  std::map<std::uint32_t, std::string> groups;
  for (const auto& group : entry_.plan.groups)
    groups[group.id] = plan::to_string(group.role);
  tools_.record([&](auto& recorder, auto) {
    for (const auto& stats : stats_)
      recorder.cost(stats, groups);
  });
  const auto deployment = deployment_;
  results_->succeed({.deployment = *deployment,
                     .seconds = {.queued = entry_.started - entry_.submitted,
                                 .loading = began_ - entry_.started,
                                 .text = text_done_ - began_,
                                 .denoising = denoised_ - text_done_,
                                 .decoding = decoded_ - denoised_,
                                 .total = tools_.environment.now() - entry_.submitted,
                                 .steps = entry_.plan.request.steps - first_step_},
                     .began = began_,
                     .stats = stats_,
                     .blob_bytes = blob_bytes_,
                     .warnings = warnings_});
}

bool Run::interrupt(const wire::Failure& why, bool counts) {
  JobEntry& job = entry_;
  if (job.cancel_asked) {
    results_->end(JobState::cancelled, job.failure);
    return false;
  }
  if (state_ == State::ending) {  // all is here, but the figures of who is gone
    warnings_.push_back("the figures of some ranks are missing: " + why.what);
    succeed();
    return false;
  }
  const double now = tools_.environment.now();
  // A host that vanishes takes several actors of a deployment at once, also while it is prepared.
  const bool same = state_ == State::waiting && lost_at_ >= 0 && now - lost_at_ < kOneLoss;
  if (counts) lost_at_ = now;
  if (counts && !same && ++losses_ > tools_.options.max_recoveries) {
    auto failure = why;
    if (losses_ > 1)
      failure.what +=
          fmt::format("; it was the loss number {} without a step between them", losses_);
    results_->fail(failure);
    return false;
  }
  if (state_ == State::waiting) return true;
  tools_.record([&](auto& recorder, auto now_ns) {
    recorder.note(recorder::Event::Kind::epoch, id_, std::nullopt, "its epoch ends: " + why.what,
                  now_ns);
  });
  tools_.dispatcher.remove(id_);
  drop_blobs();
  ++life_;
  state_ = State::waiting;
  blobs_to_come_ = 0;
  texts_done_ = 0;
  replicas_past_.clear();
  collateral_.reset();
  met_.reset();
  clock_ = {};
  // Of a stale method the first step from there on fills the K,V store anew.
  const auto& boundary = job.course.boundary;
  const int next = boundary ? boundary->next_step : 0;
  if (boundary) add_refill(job.plan, next);
  for (JobEntry* told : results_->entries())
    told->course.recoveries.push_back(
        {.cause = why.what, .step = next, .began = tools_.environment.now()});
  job.phase = JobPhase::recovering;
  warnings_.push_back("it went on after a loss: " + why.what);
  const auto how = next > 0 ? fmt::format("goes on from step {}", next) : "begins anew";
  results_->progress({"it " + how + " after a loss: " + why.what});
  return true;
}

void Run::watch() {
  for (const auto actor : deployment_->actor_of_rank)
    tools_.environment.send(tools_.members.at(actor).peer,
                            wire::ControlJob{id_, wire::JobAction::until_not_finite});
}

bool Run::meet(wire::Failure what) {
  if (met_ || entry_.cancel_asked) return false;
  met_ = std::move(what);
  note(pause_text(met_->what));
  return true;
}

void Run::cancel(const std::string& why) {
  entry_.cancel_asked = true;
  entry_.failure = {wire::FailureCode::cancelled, why};
  if (has_begun()) {
    tools_.dispatcher.cancel(id_);
    end_if_drained();
    return leave_if_long();
  }
  // While it is loaded for the first time there is nothing to keep.
  const auto deployment = began_ == 0 ? deployment_ : nullptr;
  results_->end(JobState::cancelled, entry_.failure);
  if (deployment && deployment->jobs.empty()) tools_.deployments.take_down(deployment, why);
}

void Run::leave_if_long() {
  tools_.environment.after(kDrainWithin, if_current([](Run& run) { run.leave(); }));
}

void Run::leave() {
  if (state_ != State::computing) return;
  const auto deployment = deployment_;
  // Others would lose their step: they wait for a part, which takes about a second.
  if (deployment->jobs.size() > 1 || tools_.deployments.shares_actors(*deployment))
    return leave_if_long();
  tools_.callbacks.end_epoch(deployment, wire::Failure(entry_.failure), id_);
}

void Run::release() {
  state_ = State::over;
  tools_.deployments.leave(deployment_, id_);
  drop_blobs();
  drop_boundary(entry_, tools_.environment);
}

// Failures that only say that a peer is gone. How it ended is told by the end of its process, which
// may be noticed later than the connections that it had.

void Run::fail_later(wire::Failure failure) {
  if (collateral_) return;
  collateral_ = std::move(failure);
  wait_for_cause();
}

void Run::wait_for_cause() {
  tools_.environment.after(kCauseDelay, if_current([](Run& run) { run.look_for_cause(); }));
}

void Run::look_for_cause() {
  if (!collateral_) return;
  // Who has lost its link is dying, or will be killed: the end of its process says how.
  if (!all_ready()) return wait_for_cause();
  ping_members();
}

void Run::ping_members() {
  struct Roll {
    std::size_t left = 0;
    bool lost = false;
  };
  const auto& actors = deployment_->actor_of_rank;
  const auto roll = std::make_shared<Roll>(Roll{.left = actors.size()});
  // A process that dies has no thread left when its peers see their connections break.
  const auto answered = if_current([roll](Run& run, const control::Reply& reply) {
    if (!reply && reply.failure().code == wire::FailureCode::lost) roll->lost = true;
    if (--roll->left > 0 || !run.collateral_) return;
    if (roll->lost || !run.all_ready()) return run.wait_for_cause();
    run.tools_.callbacks.end_epoch(run.deployment_, wire::Failure(*run.collateral_), run.id_);
  });
  for (const auto actor : actors)
    tools_.environment.request(tools_.members.at(actor).peer, wire::Ping{}, kRollDeadline,
                               answered);
}

void StepClock::completed(std::int32_t step, double now) {
  constexpr std::size_t kWindow = 6;
  times_.push_back({step, now});
  if (times_.size() > kWindow) times_.pop_front();
}

double StepClock::seconds_per_step() const {
  if (times_.size() < 2 || times_.back().step == times_.front().step) return 0;
  return (times_.back().time - times_.front().time) / (times_.back().step - times_.front().step);
}

}  // namespace troupe::jobs
