#include <signal.h>

#include <optional>
#include <set>
#include <thread>

#include "benchmarks/soak/load.h"
#include "troupe/actor.h"

namespace troupe::soak {
namespace {

using namespace std::chrono_literals;

class Striker {
 public:
  Striker(SoakCluster& cluster, Counts& counts, Faults& faults, unsigned seed, bool controllers)
      : cluster_(cluster),
        counts_(counts),
        faults_(faults),
        random_(seed),
        controllers_(controllers),
        client_(cluster.connect()) {}

  void strike() {
    const auto dice = random_() % 100;
    if (dice < 50) return kill_actor();
    if (dice < 62) return stop_actor();
    if (dice < 68) return freeze_actor();
    if (dice < 78) return kill_user();
    if (dice < 86) return strike_guest();
    if (dice < 95 || !controllers_) return vanish();
    ++counts_.controllers_killed;
    if (random_() % 2 == 0) {
      cluster_.restart_controller();
    } else {
      ++counts_.bits_flipped;
      counts_.salvages += cluster_.restart_damaged(static_cast<unsigned>(random_())) ? 1 : 0;
    }
    client_ = cluster_.connect();
  }

 private:
  std::vector<ActorInfo> actors() {
    auto status = client_.status();
    if (status) return status.value().actors;
    client_ = cluster_.connect();
    return {};
  }

  /// Picks a random actor that is there, may be struck, and was not frozen before.
  std::optional<ActorInfo> victim() {
    auto there = actors();
    std::erase_if(there, [&](const ActorInfo& actor) {
      return actor.pid == 0 || frozen_.contains(actor.pid) || (!controllers_ && actor.id == 0) ||
             !can_compute(actor.state);
    });
    if (there.empty()) return std::nullopt;
    return there[random_() % there.size()];
  }

  void kill_actor() {
    const auto actor = victim();
    if (!actor) return;
    kill(static_cast<pid_t>(actor->pid), SIGKILL);
    ++counts_.actors_killed;
  }

  void freeze_actor() {
    const auto actor = victim();
    if (!actor) return;
    frozen_.insert(actor->pid);
    kill(static_cast<pid_t>(actor->pid), SIGSTOP);
    ++counts_.actors_frozen;
  }

  /// A second is no death.
  void stop_actor() {
    const auto actor = victim();
    if (!actor) return;
    kill(static_cast<pid_t>(actor->pid), SIGSTOP);
    std::this_thread::sleep_for(1s);
    kill(static_cast<pid_t>(actor->pid), SIGCONT);
    std::this_thread::sleep_for(500ms);
    ++counts_.actors_stopped;
    const auto status = client_.status();
    if (!status) return;
    for (const auto& now : status.value().actors) {
      if (now.id != actor->id || now.incarnation == actor->incarnation) continue;
      auto note = "actor " + std::to_string(now.id) + " stood still for 1 s and was replaced:";
      for (const auto& failure : status.value().recent_failures)
        note += " | " + failure;
      faults_.note(note);
    }
  }

  void kill_user() {
    const auto users = client_.actors().list();
    if (!users) return;
    for (const auto& user : users.value()) {
      if (user.pid == 0 || user.state != UserActorState::running) continue;
      kill(static_cast<pid_t>(user.pid), SIGKILL);
      ++counts_.users_killed;
      return;
    }
  }

  void strike_guest() {
    const bool orderly = random_() % 2 == 0;
    cluster_.restart_guest(orderly);
    ++(orderly ? counts_.guests_left : counts_.guests_killed);
  }

  /// Ends a client in the midst of its job, without a goodbye.
  void vanish() {
    Child client(
        {cluster_.program(), "submit", "--connect", cluster_.endpoint(), "--prompt", "a cat",
         "--pp", "2", "--steps", "400", "--output", cluster_.folder() + "/vanished.png"},
        cluster_.folder() + "/vanished.log");
    std::this_thread::sleep_for(std::chrono::milliseconds(200 + random_() % 1800));
    client.signal(SIGKILL);
    ++counts_.clients_vanished;
  }

  SoakCluster& cluster_;
  Counts& counts_;
  Faults& faults_;
  std::mt19937 random_;
  bool controllers_;
  Client client_;
  std::set<std::uint32_t> frozen_;
};

}  // namespace

void strike(SoakCluster& cluster, Counts& counts, Faults& faults, Clock::time_point end,
            unsigned seed, bool controllers) {
  Striker striker(cluster, counts, faults, seed, controllers);
  std::mt19937 random(seed + 1);
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500 + random() % 3000));
    striker.strike();
  }
}

}  // namespace troupe::soak
