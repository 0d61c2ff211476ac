#include "controller/supervision/supervisor.h"

#include <algorithm>
#include <csignal>

#include "base/format.h"

namespace troupe::cluster {
namespace {

constexpr std::uint32_t kMaxFailedStarts = 3;
constexpr double kHangCheckInterval = 0.5;
/// Seconds that a lost link waits for the exit that explains it: a process that dies closes its
/// sockets first.
constexpr double kExitGrace = 0.5;
/// Seconds until a process is spawned again that could not be: what keeps it (memory, a program
/// that is being replaced) may pass.
constexpr double kSpawnAgain = 1;
constexpr int kSpawnTries = 3;
/// Seconds after its start within which a process that died may die so again: the next one waits.
constexpr double kShortLife = 1;

std::string seconds_text(double seconds) {
  return fmt::format("{} s", static_cast<long>(seconds));
}

}  // namespace

void Supervisor::spawn(ActorId id) {
  const auto incarnation = tools_.environment.random();
  kill_reasons_.erase(id);
  spawned_at_[id] = tools_.environment.now();
  const auto pid = tools_.environment.spawn(tools_.members.at(id), incarnation);
  tools_.members.spawned(id, incarnation, pid);
}

void Supervisor::ready(ActorId id) {
  tools_.deployments.actor_ready(id);
  tools_.runner.start_queued();
}

bool Supervisor::lost(control::PeerId peer, const std::string& why) {
  const Actor* actor = tools_.members.lost(peer);
  if (!actor) return false;
  // Its process may still live, cut off or stopped: it must be gone before another takes its place.
  tools_.environment.after(kExitGrace,
                           [this, id = actor->id, incarnation = actor->incarnation, why] {
                             if (stopped_ || tools_.members.at(id).incarnation != incarnation)
                               return;
                             kill(id, "lost: " + why);
                             give_up_if_kept(id, incarnation);
                           });
  return true;
}

void Supervisor::give_up_if_kept(ActorId id, std::uint64_t incarnation) {
  tools_.environment.after(tools_.options.kill_patience, [this, id, incarnation] {
    if (stopped_ || !tools_.members.fills(id, incarnation)) return;
    const std::string text =
        fmt::format("was killed by the controller ({}), and its process {} has not ended",
                    kill_reasons_[id], tools_.members.at(id).pid);
    kill_reasons_.erase(id);
    tools_.members.exited(id, incarnation, text);
    tools_.runner.actor_lost(id, text);
    give_up_noted(id, fmt::format("actor {} {}", id, text));
  });
}

void Supervisor::kill(ActorId id, const std::string& why) {
  kill_reasons_.try_emplace(id, why);
  tools_.environment.kill(id, with_task(id, why));
}

void Supervisor::exited(ActorId id, std::uint64_t incarnation, const ExitCause& cause) {
  if (stopped_ || !tools_.members.fills(id, incarnation)) return;
  std::string text = cause.text();
  const Actor& actor = tools_.members.at(id);
  const bool drained = actor.draining && actor.closed && cause.told.empty();
  // What its host says of it is nearer to the cause than why it was killed from here, and so is an
  // end that no such kill makes: it was on its way already.
  const bool killed = cause.by_signal && cause.number == SIGKILL && cause.told.empty();
  if (const auto reason = kill_reasons_.extract(id); reason && !drained && killed)
    text = "was killed by the controller (" + reason.mapped() + ")";
  else if (drained)
    text = "was drained";
  else if (cause.by_signal || !cause.told.empty())
    text = "was " + text;
  else
    text = "ended with " + text;
  const auto peer = tools_.members.at(id).peer;
  if (!tools_.members.exited(id, incarnation, text)) return;
  if (peer != 0) tools_.environment.drop(peer, "its process is gone");
  if (!drained) events_.note(fmt::format("actor {} {}", id, text));
  tools_.runner.actor_lost(id, text);
  fill_again(id, text);
}

void Supervisor::fill_again(ActorId id, const std::string& ended) {
  const Actor& actor = tools_.members.at(id);
  if (actor.closed) return give_up(id, fmt::format("actor {} {}", id, ended));
  const auto failed_starts = actor.failed_starts;
  if (const int most = tools_.options.max_respawns;
      failed_starts == 0 && most >= 0 && actor.restarts >= static_cast<std::uint64_t>(most)) {
    return give_up(id, fmt::format("actor {} {}, and its place stays empty", id, ended));
  }
  if (failed_starts == 0 && tools_.environment.now() - spawned_at_[id] < kShortLife)
    return fill_later(id, kSpawnTries);
  if (failed_starts >= kMaxFailedStarts ||
      (events_.starting_up() && !actor.remote && failed_starts > 0))
    return give_up_noted(id, fmt::format("actor {} cannot start: {}", id, ended));
  try {
    spawn(id);
  } catch (const std::exception& error) {
    events_.note(error.what());
    fill_later(id, kSpawnTries - 1);
  }
}

void Supervisor::fill_later(ActorId id, int tries) {
  // Until then jobs may wait for it.
  tools_.members.spawn_later(id, tools_.environment.random());
  tools_.environment.after(kSpawnAgain, [this, id, tries] {
    if (stopped_) return;
    if (const Actor& actor = tools_.members.at(id); actor.closed) {
      tools_.members.start_failed(id);
      return give_up(id, fmt::format("actor {} {}", id, actor.last_cause));
    }
    try {
      spawn(id);
    } catch (const std::exception& failure) {
      if (tries > 1) {
        events_.note(failure.what());
        return fill_later(id, tries - 1);
      }
      tools_.members.start_failed(id);
      give_up_noted(id, failure.what());
    }
  });
}

void Supervisor::give_up_noted(ActorId id, const std::string& why) {
  events_.note(why);
  give_up(id, why);
}

void Supervisor::give_up(ActorId id, const std::string& why) {
  const Actor& actor = tools_.members.at(id);
  tools_.members.close(id);
  tools_.deployments.actor_gone(id, why);
  // A guest's troubles are not the cluster's: it starts without, as it does without who is drained.
  if (!actor.remote && !actor.draining) events_.on_given_up(why);
  tools_.runner.places_lost(why);
}

void Supervisor::watch() {
  tools_.environment.after(kHangCheckInterval, [this] {
    if (stopped_) return;
    look_for_hangs();
    watch();
  });
}

void Supervisor::look_for_hangs() {
  const double now = tools_.environment.now();
  for (const auto& [id, actor] : tools_.members.all()) {
    const double start_deadline = tools_.options.start_deadline;
    const auto spawned = spawned_at_.find(id);
    if (actor.state == ActorState::starting && spawned != spawned_at_.end() &&
        now - spawned->second > start_deadline)
      kill(id, "it said no hello within " + seconds_text(start_deadline));
    const bool busy =
        tools_.runner.busy(id) || tools_.deployments.preparing(id) || !actor.leaving_epochs.empty();
    if (actor.state != ActorState::ready || !busy) {
      seen_idle_[id] = now;
      continue;
    }
    const auto progress = tools_.environment.last_progress(actor.peer);
    if (progress && now - std::max(*progress, seen_idle_[id]) > tools_.options.task_deadline)
      kill_hanging(id);
  }
}

void Supervisor::kill_hanging(ActorId id) {
  const std::string why =
      "its work loop made no progress for " + seconds_text(tools_.options.task_deadline);
  if (!kill_reasons_.contains(id)) {
    const auto file =
        events_.record_hang(id, with_task(id, fmt::format("actor {} is killed: {}", id, why)));
    kill_reasons_[id] = file.empty() ? why : why + "; flight record: " + file;
  }
  tools_.environment.kill(id, with_task(id, why));
}

std::string Supervisor::with_task(ActorId id, const std::string& why) const {
  const auto task = tools_.runner.doing(id);
  return task.empty() ? why : why + ", during " + task;
}

}  // namespace troupe::cluster
