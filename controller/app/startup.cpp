#include "controller/app/startup.h"

#include <algorithm>
#include <stdexcept>

#include "controller/hosts/capacity.h"

namespace troupe::cluster {

void Startup::fill() {
  const auto starting = std::ranges::count_if(members_.all(), [](const auto& member) {
    const Actor& actor = member.second;
    return !actor.remote && actor.pid != 0 && actor.state == ActorState::starting;
  });
  const int at_once = starting_at_once(local_capacity().cores);
  for (auto busy = starting; !unfilled_.empty() && busy < at_once; ++busy) {
    if (stopped_ || failure_) return;
    const ActorId id = unfilled_.front();
    unfilled_.pop_front();
    if (!members_.at(id).accepts_jobs()) {  // drained before it had a process
      members_.start_failed(id);
      members_.close(id);
      continue;
    }
    try {
      supervisor_.spawn(id);
    } catch (const std::exception& error) {
      return cannot_start(error.what());
    }
  }
  check_ready();
}

void Startup::plugins_checked(const std::optional<std::string>& why) {
  plugins_checked_ = true;
  if (why) return cannot_start(*why);
  check_ready();
}

void Startup::cannot_start(const std::string& why) {
  failure_ = why;
  answer(why);
}

void Startup::stop(const std::string& why) {
  stopped_ = true;
  answer(why);
}

void Startup::on_ready(std::function<void(std::optional<std::string>)> handler) {
  if (failure_ || stopped_) return handler(failure_.value_or("the cluster was stopped"));
  ready_handler_ = std::move(handler);
  check_ready();
}

void Startup::check_ready() {
  if (!ready_handler_ || !plugins_checked_) return;
  const auto drained = [](const auto& member) { return member.second.closed; };
  // A cluster may begin without any, and wait for hosts.
  if (!members_.all().empty() && std::ranges::all_of(members_.all(), drained))
    return cannot_start("[cluster] all actors were drained before they had started");
  const bool whole = std::ranges::all_of(members_.all(), [&](const auto& member) {
    return member.second.remote || drained(member) || member.second.state == ActorState::ready;
  });
  if (whole) answer(std::nullopt);
}

void Startup::answer(const std::optional<std::string>& why) {
  if (ready_handler_) std::exchange(ready_handler_, nullptr)(why);
}

}  // namespace troupe::cluster
