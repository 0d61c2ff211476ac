#include <algorithm>
#include <boost/asio/post.hpp>

#include "controller/cluster/controller.h"

namespace troupe::cluster {
namespace {

constexpr std::uint32_t kMaxFailedStarts = 3;
constexpr std::chrono::seconds kSupervisionInterval{1};
/// A process that dies closes its sockets first: how long a lost link waits for the exit that
/// explains it.
constexpr std::chrono::milliseconds kExitGrace{100};
/// What keeps a process from being spawned (memory, a program that is being replaced) may pass.
constexpr std::chrono::seconds kSpawnAgain{1};

}  // namespace

void Controller::on_lost(control::PeerId peer, const std::string& why) {
  if (const Actor* actor = members_.lost(peer)) {
    // Its process may still live, cut off or stopped: it must be gone before another takes its
    // place.
    auto grace = std::make_shared<boost::asio::steady_timer>(io_, kExitGrace);
    grace->async_wait(
        [this, grace, id = actor->id, incarnation = actor->incarnation, why](const auto&) {
          if (members_.at(id).incarnation == incarnation) kill_actor(id, "lost: " + why);
        });
    return;
  }
  gateway_->client_lost(peer);
}

void Controller::kill_actor(ActorId id, const std::string& why) {
  kill_reasons_.try_emplace(id, why);
  agent_->kill(id);
}

void Controller::actor_exited(ActorId id, std::uint64_t incarnation, const ExitCause& cause) {
  std::string text = cause.text();
  if (const auto reason = kill_reasons_.extract(id))
    text = "was killed by the controller (" + reason.mapped() + ")";
  else if (cause.by_signal)
    text = "was " + text;
  else
    text = "ended with " + text;
  if (stopping_) {
    if (agent_->running() == 0 && stopped_)
      boost::asio::post(io_, std::exchange(stopped_, nullptr));
    return;
  }
  const auto peer = members_.at(id).peer;
  if (!members_.exited(id, incarnation, text)) return;
  if (peer != 0) server_->drop(peer, "its process is gone");
  gateway_->note_failure("actor " + std::to_string(id) + " " + text);
  runner_->actor_lost(id, text);
  respawn(id, text);
}

void Controller::respawn(ActorId id, const std::string& ended) {
  const auto failed_starts = members_.at(id).failed_starts;
  if (failed_starts >= kMaxFailedStarts || (ready_handler_ && failed_starts > 0)) {
    cannot_start("actor " + std::to_string(id) + " cannot start: " + ended);
    return;
  }
  try {
    spawn(id);
  } catch (const std::exception& error) {
    gateway_->note_failure(error.what());
    respawn_later(id);
  }
}

void Controller::respawn_later(ActorId id) {
  // Until then jobs may wait for it.
  members_.at(id).state = ActorState::starting;
  members_.at(id).incarnation = control::random_incarnation();
  auto again = std::make_shared<boost::asio::steady_timer>(io_, kSpawnAgain);
  again->async_wait([this, again, id](const boost::system::error_code& error) {
    if (error || stopping_) return;
    try {
      spawn(id);
    } catch (const std::exception& failure) {
      members_.at(id).state = ActorState::dead;
      cannot_start(failure.what());
    }
  });
}

void Controller::supervise() {
  supervision_timer_.expires_after(kSupervisionInterval);
  supervision_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || stopping_) return;
    for (const auto& [id, actor] : members_.all()) {
      const auto now = control::Clock::now();
      if (actor.state == ActorState::starting && now - spawned_at_[id] > options_.start_deadline) {
        kill_actor(id, "it said no hello within " +
                           std::to_string(options_.start_deadline.count()) + " s");
      }
      if (actor.state != ActorState::ready || !runner_->busy(id)) {
        seen_idle_[id] = now;
        continue;
      }
      const auto vitals = server_->vitals(actor.peer);
      if (!vitals) continue;
      const auto still = now - std::max(vitals->progress_changed, seen_idle_[id]);
      if (still > options_.task_deadline) {
        kill_actor(id, "its work loop made no progress for " +
                           std::to_string(options_.task_deadline.count()) + " s");
      }
    }
    supervise();
  });
}

}  // namespace troupe::cluster
