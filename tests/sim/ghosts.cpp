#include <algorithm>
#include <csignal>
#include <sstream>

#include "tests/sim/world.h"
#include "transport/wire/codec.h"

// What was said before, or by those who are dead: it must change nothing.
namespace troupe::sim {

void World::hand(cluster::ActorId id, const std::string& frame) {
  const auto bytes = wire::as_bytes(frame);
  const auto kind = wire::decode_header(bytes).kind;
  if (kind == wire::Kind::task_done)
    runner_->task_done(id, wire::decode<wire::TaskDone>(wire::payload_of(bytes)));
  if (kind == wire::Kind::task_failed) {
    const auto failed = wire::decode<wire::TaskFailed>(wire::payload_of(bytes));
    if (failed.begin && goes_on(id, failed.epoch, failed.job))
      throw Violation("job " + std::to_string(failed.job) +
                      " goes on, and the latents that it began again from are gone");
    runner_->task_failed(id, failed);
  }
}

bool World::goes_on(cluster::ActorId id, std::uint64_t epoch, jobs::JobId job) const {
  const auto kept = deployments_->at(id);
  return runner_->dispatcher().has(job) &&
         std::ranges::any_of(kept, [epoch](const auto& one) { return one->epoch == epoch; });
}

void World::echo(cluster::ActorId id, const std::string& frame) {
  if (!runner_) return;
  ++link_counts_.echoes;
  changes_nothing("a message of actor " + std::to_string(id) + " that came twice",
                  [&] { hand(id, frame); });
}

void World::haunt(const CablePtr& cable) {
  for (int i = 0; i < 2; ++i) {
    after(some(i == 0 ? 0.2 : 4), [this, cable] {
      if (!runner_) return;
      ++link_counts_.ghosts;
      const auto id = cable->actor;
      const auto who = "actor " + std::to_string(id) + ", which is dead,";
      changes_nothing(who + " says hello", [&] { greet(cable); });
      changes_nothing(who + " loses its link", [&] {
        if (cable->peer != 0 && supervisor_->lost(cable->peer, "a ghost's"))
          throw Violation(who + " had a link");
      });
      changes_nothing(who + " ends once more", [&] {
        supervisor_->exited(id, cable->incarnation,
                            {.by_signal = true, .number = SIGKILL, .log = {}});
      });
      // The next controller counts epochs anew, and a frame of another life is nobody's at its
      // door.
      if (cable->life != life_) return;
      for (const auto& frame : cable->told)
        changes_nothing(who + " has done something", [&] { hand(id, frame); });
    });
  }
}

void World::changes_nothing(const std::string& what, const std::function<void()>& action) {
  const auto before = state_text();
  const auto events = next_event_;
  const auto notes = notes_.size();
  action();
  const auto now = state_text();
  if (now != before) throw Violation(what + ": that changed\n" + before + "to\n" + now);
  if (next_event_ != events) throw Violation(what + ": that set something off");
  if (notes_.size() != notes) throw Violation(what + ": that was told");
}

std::string World::state_text() const {
  std::ostringstream text;
  for (const auto& [id, actor] : members_.all()) {
    text << "actor " << id << " " << to_string(actor.state) << " " << actor.incarnation << " peer "
         << actor.peer << " restarts " << actor.restarts << "+" << actor.failed_starts << " "
         << actor.last_cause << (actor.draining ? " draining" : "")
         << (actor.closed ? " closed" : "") << " jobs";
    for (const auto job : actor.jobs)
      text << " " << job;
    text << " leaves";
    for (const auto epoch : actor.leaving_epochs)
      text << " " << epoch;
    text << " queue";
    for (const auto& [job, task] : runner_->dispatcher().queue(id))
      text << " " << job << ":" << task;
    for (const auto& kept : deployments_->at(id)) {
      text << " deployment " << kept->id << " epoch " << kept->epoch << " "
           << static_cast<int>(kept->state) << " connected " << kept->connected << " failed "
           << kept->failed_connects << " at";
      for (const auto& holding : kept->holdings)
        text << " " << holding.asked << "/" << holding.loaded;
    }
    text << "\n";
  }
  for (const auto& [id, job] : table_.all()) {
    text << "job " << id << " " << to_string(job.state) << " "
         << (runner_->paused(id) ? "paused " : "") << runner_->met(id) << job.phase << " step "
         << job.step << " parts " << job.course.parts.size() << " recoveries "
         << job.course.recoveries.size() << " blobs " << job.outcome.blobs.size() << "+"
         << job.outcome.interim.size() << " boundary "
         << (job.course.boundary ? job.course.boundary->next_step : -1) << " batch "
         << job.batching.number << " " << job.cancel_asked << " " << job.waits_for << " "
         << job.failure.what << "\n";
  }
  text << blobs_.size() << " blobs, " << processes_.size() << " processes, " << ends_.size()
       << " ends, " << table_.batches().size() << " batches\n";
  return text.str();
}

}  // namespace troupe::sim
