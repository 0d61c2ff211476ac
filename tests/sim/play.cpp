#include <algorithm>

#include "controller/deployments/device_kinds.h"
#include "controller/plan/layout.h"
#include "controller/plan/plan.h"
#include "controller/plan/planner.h"
#include "tests/controller/sample_model.h"
#include "tests/sim/world.h"

namespace troupe::sim {
namespace {

plan::Plan random_plan(std::mt19937_64& random, int actors) {
  const auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (;;) {
    wire::ImageRequest request;
    request.prompts.assign(pick(1, 2), "x");
    request.steps = pick(1, 6);
    request.guidance_scale = pick(0, 1) ? 4.5 : 1.0;
    request.method = pick(0, 1) ? Method::exact : Method::pipefusion;
    if (request.method != Method::exact) {
      request.num_pipeline_patch = pick(1, 4);
      request.warmup_steps = pick(0, std::min(2, request.steps));
    }
    const wire::Parallelism degrees{.dp = pick(1, static_cast<int>(request.prompts.size())),
                                    .cfg = request.guidance_scale > 1 ? pick(1, 2) : 1,
                                    .pp = pick(1, 4),
                                    .ulysses = pick(1, 2),
                                    .ring = pick(1, 2),
                                    .tp = pick(1, 2)};
    if (degrees.dp * degrees.cfg * degrees.pp * degrees.ulysses * degrees.ring * degrees.tp >
        actors)
      continue;
    plan::Machine machine;  // of some jobs so slow a one that all goes in parts
    machine.device.float_flops = request.steps % 3 == 0 ? 1 : 0;
    try {
      return plan::make_plan(test::skipping_model(), request, degrees, machine);
    } catch (const std::invalid_argument&) {
      // Degrees that do not fit this request: draw again.
    }
  }
}

}  // namespace

/// Draws limits: at most places what the hungriest job on a single actor takes, so that two of the
/// larger ones do not fit side by side; at some no more than half of it.
void World::draw_limits() {
  wire::ImageRequest request;
  request.prompts.assign(2, "x");
  request.method = Method::pipefusion;
  request.num_pipeline_patch = 4;
  const auto plan = plan::make_plan(test::skipping_model(), request, {});
  const auto least = plan.memory.front().peak();
  for (int i = 0; i < places_; ++i)
    limits_[static_cast<cluster::ActorId>(i)] =
        (rng_() % 4 == 0 ? least / 2 : least) + rng_() % (least / 2);
}

void World::submit_one() {
  const auto living = runner_ ? cluster::most_alike(members_, WeightChoice::as_computed) : places_;
  if (living == 0) {
    // The gateway refuses it.
    ++refused_;
    return;
  }
  wire::JobSpec spec;
  spec.model = rng_() % 4 == 0 ? "another" : "model";
  std::mt19937_64 few(faults_.batches ? rng_() % 2 : 0);
  auto plan = faults_.batches ? random_plan(few, std::min(2, living)) : random_plan(rng_, living);
  if (faults_.wide) {
    do {
      plan = random_plan(rng_, 8);
    } while (plan.degrees.world() != 8);
    spec.model = "model";
  }
  if (faults_.one_mesh) {
    while (!mesh_ && plan.degrees.pp == 1)
      plan = random_plan(rng_, living);
    if (!mesh_) mesh_ = plan;
    plan = *mesh_;
    spec.model = "model";
  }
  spec.request = plan.request;
  if (faults_.batches) {
    spec.may_batch = rng_() % 8 != 0;
    spec.request.seed = plan.request.seed = rng_() % 200;
    spec.request.want_latents = plan.request.want_latents = few() % 2 == 0;
    spec.priority = rng_() % 8 == 0 ? 1 : 0;
  }
  spec.elastic = faults_.elastic;
  note("submit " + to_string(plan.request.method) + " on " + std::to_string(plan.degrees.world()) +
       " actors, pp " + std::to_string(plan.degrees.pp));
  spec.parallelism = plan::parallelism_of(plan.degrees);
  if (faults_.restarts_per_job > 0) {
    const auto key = random();
    hand_in(spec, key);
    for (int i = 0; i < 2 && chance(faults_.retries_per_job); ++i)
      after(some(0.4), [this, spec, key] { hand_in(spec, key); });
    return;
  }
  if (runner_ && deployments_->shortage(plan)) {
    // So does the gateway.
    ++refused_;
    return;
  }
  const auto id = table_.add(std::move(spec), std::move(plan), 0, true, now_);
  if (!id) throw Violation("the queue is full");
  runner_->start_queued();
  if (chance(faults_.watches_per_job)) {
    after(some(0.3), [this, id = *id] {
      runner_->stop_at_not_finite(id);
      let_go(id);
    });
  }
  if (!chance(faults_.cancels_per_job)) return;
  for (int i = 0; i < 1 || chance(faults_.retries_per_job); ++i)
    after(some(1), [this, id = *id] { runner_->cancel(id, "not wanted"); });
}

void World::let_go(jobs::JobId id) {
  after(some(2), [this, id] {
    const auto* job = table_.find(id);
    if (!job || has_ended(job->state)) return;
    if (!runner_->met(id).empty()) ++met_;
    if (runner_->paused(id)) runner_->resume(id);
    let_go(id);
  });
}

void World::drain_one() {
  if (!drainer_ || members_.living_count() < 2) return;
  std::vector<cluster::ActorId> living;
  for (const auto& [id, actor] : members_.all()) {
    if (actor.usable()) living.push_back(id);
  }
  if (living.empty()) return;
  const auto id = living[rng_() % living.size()];
  note("drain actor " + std::to_string(id) + ": " + drainer_->drain({id}, /*now=*/rng_() % 2 == 0));
}

/// Loses hosts as cluster::Hosts does it.
void World::lose_host() {
  if (!supervisor_) return;
  std::set<std::string> hosts;
  const auto racks = static_cast<unsigned>(faults_.hosts / faults_.hosts_at_once);
  const int first = static_cast<int>(rng_() % racks) * faults_.hosts_at_once;
  for (int i = 0; i < faults_.hosts_at_once; ++i) {
    const auto host = "host " + std::to_string(first + i);
    note(host + " is lost");
    members_.host_lost(host, "was lost with its host");
    hosts.insert(host);
  }
  std::map<cluster::ActorId, std::uint64_t> there;
  for (const auto& [id, actor] : members_.all()) {
    if (!hosts.contains(actor.host)) continue;
    if (processes_.contains(actor.incarnation)) there[id] = actor.incarnation;
  }
  for (const auto& [id, incarnation] : there) {
    cluster::ExitCause cause;
    cause.told = "lost with its host";
    supervisor_->exited(id, incarnation, cause);
    end_process(incarnation, 9);
  }
}

void World::leaves(std::uint64_t incarnation) {
  after(some(0.02), [this, incarnation] { end_process(incarnation, 15); });
}

void World::blow() {
  const auto at_some_time = [this](double probability, std::function<void(StageActor&)> what) {
    if (!chance(probability)) return;
    after(some(faults_.batches ? 0.5 : 1.5), [this, what = std::move(what)] {
      if (const auto process = any_process()) what(*processes_.at(*process));
    });
  };
  at_some_time(faults_.kills_per_job,
               [this](StageActor& actor) { end_process(actor.incarnation(), 9); });
  at_some_time(faults_.mass_kills_per_job, [this](StageActor&) {
    for (int i = 0; i < 4; ++i) {
      if (const auto process = any_process()) end_process(*process, 9);
    }
  });
  at_some_time(faults_.hangs_per_job, [this](StageActor& actor) {
    note("actor " + std::to_string(actor.id()) + " hangs");
    actor.hangs = true;
    fall_silent(actor.incarnation());
  });
  at_some_time(faults_.stalls_per_job, [this](StageActor& actor) {
    note("actor " + std::to_string(actor.id()) + " stalls");
    actor.stall();
  });
  at_some_time(faults_.naps_per_job, [this](StageActor& actor) {
    const double seconds = some(4);
    note("actor " + std::to_string(actor.id()) + " is stopped for " + std::to_string(seconds) +
         " s");
    actor.rest(seconds);
    actor.stopped_until = now_ + seconds;
    if (seconds > kSilence) fall_silent(actor.incarnation());
  });
  at_some_time(faults_.slow_per_job, [this](StageActor& actor) {
    const double seconds = some(12);
    note("actor " + std::to_string(actor.id()) + " is held up for " + std::to_string(seconds) +
         " s");
    actor.rest(seconds);
  });
  if (chance(faults_.drains_per_job)) after(some(1.5), [this] { drain_one(); });
  if (chance(faults_.lost_hosts_per_job))
    after(some(faults_.wide ? 0.2 : 1.5), [this] { lose_host(); });
  if (chance(faults_.restarts_per_job)) after(some(1.5), [this] { end_controller(); });
  at_some_time(faults_.cuts_per_job, [this](StageActor& actor) {
    if (const auto cable = cables_.find(actor.incarnation()); cable != cables_.end())
      cut(cable->second);
  });
}

void World::fall_silent(std::uint64_t incarnation) {
  after(kSilence, [this, incarnation] {
    if (const auto cable = cables_.find(incarnation); cable != cables_.end())
      silence(cable->second, /*up=*/true);
  });
}

void World::play(int jobs, double deadline) {
  double when = 0.5;
  for (int i = 0; i < jobs; ++i) {
    after(when, [this] {
      submit_one();
      blow();
    });
    when += some(faults_.wide ? 0.01 : faults_.batches || faults_.one_mesh ? 0.05 : 0.3);
  }
  const auto over = [&] { return static_cast<int>(ends_.size()) + refused_ == jobs; };
  double quiet_since = 0;
  // Time for what was stuck to be found, for every place to be filled again, and for what is left
  // of a batch to wait for a blob in vain.
  const double grace = faults_.late_blobs > 0 ? 250 : 100;
  while (now_ < deadline && !events_.empty()) {
    auto event = events_.top();
    events_.pop();
    now_ = event.when;
    event.action();
    check_memory();
    if (faults_.two_kinds) check_kinds();
    if (!over()) quiet_since = now_;
    if (over() && runner_ && now_ > quiet_since + grace) return check_quiet();
  }
  std::string waiting;
  for (const auto& [id, job] : table_.all()) {
    if (!has_ended(job.state))
      waiting.append(" ")
          .append(std::to_string(id))
          .append(" (")
          .append(to_string(job.phase))
          .append(")");
  }
  throw Violation("jobs did not end:" + waiting);
}

void World::check_memory() {
  if (limits_.empty() || !deployments_) return;
  for (const auto& [id, limit] : limits_) {
    if (deployments_->held(id) > limit)
      throw Violation("actor " + std::to_string(id) + " is to hold more than it may");
  }
  std::uint64_t used = 0;
  for (const auto& [id, actor] : members_.all()) {
    if (actor.parts.size() > cluster::kMostResidents) throw Violation("too many deployments");
    used = std::max<std::uint64_t>(used, actor.parts.size());
  }
  most_residents_ = std::max(most_residents_, used);
}

void World::check_kinds() const {
  std::map<jobs::JobId, DeviceKind> kinds;
  for (const auto& [id, actor] : members_.all()) {
    for (const auto job : actor.jobs) {
      if (kinds.emplace(job, actor.device_kind()).first->second != actor.device_kind())
        throw Violation("a job has actors of two kinds");
    }
  }
}

void World::check_quiet() {
  for (const auto& [id, actor] : members_.all()) {
    if (!actor.jobs.empty()) throw Violation("an actor still has a job:\n" + state_text());
    if (runner_->busy(id)) throw Violation("an actor still has a task");
    if (actor.state == ActorState::ready && !actor.leaving_epochs.empty())
      throw Violation("an actor has not answered the end of its epoch");
    if (actor.state != ActorState::ready && actor.state != ActorState::dead)
      throw Violation("a place was not filled again: " + std::string(to_string(actor.state)));
  }
  for (const auto& [incarnation, process] : processes_) {
    const bool works = !process->hangs && process->last_progress() == now_;
    if (works && process->keeps_jobs()) throw Violation("a process still keeps a job");
  }
  if (!table_.batches().empty()) throw Violation("a batch is left");
  std::size_t kept = 0;
  for (const auto& [id, job] : table_.all()) {
    kept += job.outcome.blobs.size();
    if (job.course.boundary) throw Violation("an ended job still has a boundary");
  }
  if (kept != blobs_.size())
    throw Violation(std::to_string(blobs_.size()) + " blobs are held, " + std::to_string(kept) +
                    " are results");
}

}  // namespace troupe::sim
