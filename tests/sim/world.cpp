#include "tests/sim/world.h"

#include <algorithm>
#include <cmath>

#include "controller/jobs/batching.h"
#include "controller/jobs/replan.h"
#include "tests/controller/sample_model.h"
#include "transport/wire/codec.h"
#include "transport/wire/done.h"

namespace troupe::sim {

World::World(std::uint64_t seed, Faults faults, int actors)
    : rng_(seed), faults_(faults), places_(actors), members_(token()), table_(1000, 1000) {
  if (faults_.tight_memory) draw_limits();
  make_rooms();
}

void World::check_results(const jobs::JobEntry& job) const {
  const auto& request = job.spec.request;
  const int pictures = job.plan.picture_count();
  std::string latents;
  int seen = 0;
  for (const auto& blob : job.outcome.blobs) {
    const auto bytes = held_blob(blob.id).value();
    if (blob.name == "latents") {
      latents += bytes;
    } else if (bytes != picture_text(request.seed, seen++)) {
      throw Violation("job " + std::to_string(job.id) + " got " + bytes);
    }
  }
  std::string expected;
  for (int picture = 0; request.want_latents && picture < pictures; ++picture)
    expected += latent_text(request.seed, picture);
  if (seen != pictures || latents != expected)
    throw Violation("job " + std::to_string(job.id) + " did not get all its pictures or latents");
}

void World::finished(jobs::JobEntry& job) {
  if (job.state == JobState::succeeded) check_results(job);
  batched_ += job.batching.number != 0;
  retried_ += job.batching.alone;
  const auto tell = [this, id = job.id, state = job.state, what = job.failure.what,
                     recoveries = job.course.recoveries.size()](const auto&) {
    note("job " + std::to_string(id) + " " + to_string(state) + " " + what);
    recoveries_ += recoveries;
    if (++ends_[id] > 1) throw Violation("a job ended twice");
    if (state != JobState::succeeded && what.empty())
      throw Violation("a job ended without a cause");
  };
  if (!journal_) return tell(std::nullopt);
  journal_->ended(job, tell);
}

void World::progress(const jobs::JobEntry& job, const wire::JobProgress&) {
  if (journal_) journal_->changed(job);
}

void World::boundary(const jobs::JobEntry& job) {
  if (journal_) journal_->boundary(job);
}

void World::make_rooms() {
  door_ = std::make_unique<Door>(*this);
  if (faults_.restarts_per_job > 0) make_journal();
  deployments_ = std::make_unique<cluster::Deployments>(*door_, members_);
  runner_ = std::make_unique<jobs::JobRunner>(jobs::JobRunner::Tools{
      .environment = *door_,
      .members = members_,
      .deployments = *deployments_,
      .table = table_,
      .options = {.max_jobs_per_deployment = faults_.batches ? 1u : 3u,
                  .max_recoveries = faults_.empty_places ? 100 : 3,
                  .rejoin_deadline = faults_.rejoin_deadline},
      .plan_again =
          [this](const jobs::JobEntry& job, int actors) {
            const auto fits = [this](const plan::Plan& plan) {
              return !deployments_->shortage(plan);
            };
            return jobs::plan_again(job, test::sample_model(), actors,
                                    plan::machine_here(DeviceKind::cpu, actors, 4),
                                    {members_.memory_steps(), fits});
          },
      .plan_batch =
          [](const jobs::JobEntry& first, const wire::ImageRequest& request) {
            return plan::make_plan(test::sample_model(), request, jobs::parallelism_of(first));
          }});
  supervisor_ = std::make_unique<cluster::Supervisor>(
      cluster::Supervisor::Tools{.environment = *door_,
                                 .members = members_,
                                 .deployments = *deployments_,
                                 .runner = *runner_,
                                 .options = {.start_deadline = 30,
                                             .task_deadline = 20,
                                             .max_respawns = faults_.empty_places ? 0 : -1}});
  drainer_ = std::make_unique<cluster::Drainer>(
      cluster::Drainer::Tools{*door_, members_, *deployments_, *runner_});
  deployments_->listen(*runner_);
  deployments_->listen(*supervisor_);
  runner_->listen(*this);
  supervisor_->listen(
      {.note = [this](const std::string& what) { note(what); },
       .on_given_up = [this](const std::string& why) { note("given up: " + why); }});
  for (int i = 0; i < places_; ++i) {
    const std::string device =
        faults_.two_kinds && i % 3 == 2 ? "cuda:" + std::to_string(i) : "cpu";
    const auto id = members_.add("host " + std::to_string(i * faults_.hosts / places_), device).id;
    if (!limits_.empty()) members_.limit_memory(id, limits_.at(id));
    for (;;) {
      try {
        supervisor_->spawn(id);
        break;
      } catch (const std::runtime_error&) {
        // Of the first spawn the real controller tells its user; here it is tried again.
      }
    }
  }
  supervisor_->watch();
}

World::~World() = default;

bool World::chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<>(0, 1)(rng_) < probability;
}

double World::some(double mean) {
  return mean * (0.2 + std::exponential_distribution<>(1.25)(rng_));
}

void World::holds(cluster::ActorId id, std::uint64_t bytes) const {
  if (!limits_.empty() && bytes > limits_.at(id))
    throw Violation("actor " + std::to_string(id) + " holds more weights than it may");
}

void World::note(const std::string& what) {
  notes_.push_back(std::to_string(now_) + "  " + what);
}

std::string World::trace(std::size_t lines) const {
  std::string text;
  for (std::size_t i = notes_.size() > lines ? notes_.size() - lines : 0; i < notes_.size(); ++i)
    text += notes_[i] + "\n";
  return text;
}

void World::after(double seconds, std::function<void()> action) {
  at(now_ + std::max(seconds, 0.0), std::move(action));
}

void World::at(double when, std::function<void()> action) {
  events_.push({when, next_event_++, std::move(action)});
}

// Processes

std::uint32_t World::spawn(const cluster::Actor& place, std::uint64_t incarnation) {
  if (chance(faults_.failed_spawns)) throw std::runtime_error("troupe-actor cannot be started");
  note("spawn actor " + std::to_string(place.id));
  processes_[incarnation] = std::make_unique<StageActor>(*this, place.id, incarnation);
  const bool fails = chance(faults_.failed_starts);
  after(some(0.3), [this, id = place.id, incarnation, fails] {
    if (!processes_.contains(incarnation)) return;
    if (fails) return end_process(incarnation, 6);
    hello(id, incarnation);
  });
  return static_cast<std::uint32_t>(incarnation % 100'000);
}

void World::kill(cluster::ActorId id, const std::string&) {
  for (const auto& [incarnation, process] : processes_) {
    if (process->id() == id) {
      after(some(0.002), [this, incarnation = incarnation] { end_process(incarnation, 9); });
    }
  }
}

void World::end_process(std::uint64_t incarnation, int signal) {
  const auto found = processes_.find(incarnation);
  if (found == processes_.end()) return;
  const auto id = found->second->id();
  const auto epochs = found->second->epochs();
  note("actor " + std::to_string(id) + " dies");
  ++deaths_;
  // Events of its own may still be under way: it does nothing in them.
  found->second->hangs = true;
  std::shared_ptr<StageActor> gone(std::move(found->second));
  after(600, [gone] {});
  processes_.erase(found);
  for (const auto& [other, process] : processes_)
    process->peer_gone(epochs);
  auto cable = cables_.contains(incarnation) ? cables_.extract(incarnation).mapped() : nullptr;
  const bool exit_first = rng_() % 2 == 0;
  const auto lost = [this, cable] {
    if (cable && cable->known) lose(cable->peer, "its socket is closed");
  };
  if (!cable) {  // it had not said hello
    cable = std::make_shared<Cable>();
    cable->incarnation = incarnation;
    cable->life = life_;
    cable->actor = id;
  }
  const auto exited = [this, cable, signal] {
    if (!supervisor_ || cable->life != life_) return;
    supervisor_->exited(cable->actor, cable->incarnation,
                        {.by_signal = signal != 3, .number = signal, .core = false, .log = {}});
    if (faults_.ghosts) haunt(cable);
  };
  const double late = chance(faults_.late_exits) ? some(1.5) : 0;
  after(some(0.005), exit_first && late == 0 ? std::function<void()>(exited) : lost);
  after(some(0.02) + 0.03 + late, exit_first && late == 0 ? std::function<void()>(lost) : exited);
}

std::optional<std::uint64_t> World::any_process() {
  if (processes_.empty()) return std::nullopt;
  auto chosen = processes_.begin();
  std::advance(chosen, static_cast<long>(rng_() % processes_.size()));
  return chosen->first;
}

}  // namespace troupe::sim
