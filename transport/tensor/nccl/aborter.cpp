#include "transport/tensor/nccl/aborter.h"

#include <chrono>
#include <condition_variable>
#include <stdexcept>
#include <thread>

namespace troupe::tensor::nccl {

using Clock = std::chrono::steady_clock;

bool Verdict::give(Cause cause) {
  std::lock_guard lock(mutex_);
  if (given()) return false;
  if (cause.text.empty()) cause.text = "aborted";
  cause_ = std::move(cause);
  given_.store(true, std::memory_order_release);
  return true;
}

std::optional<Verdict::Cause> Verdict::cause() const {
  if (!given()) return std::nullopt;
  std::lock_guard lock(mutex_);
  return cause_;
}

struct Aborter::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<Deadline> asked_at;  // when `end` is to run
  bool gone = false;                 // the owner is
  std::promise<void> begun, ended;
  std::shared_future<void> end = ended.get_future().share();

  /// Waits until `end` is asked for. False when the owner went without having asked.
  bool wait_to_be_asked() {
    std::unique_lock lock(mutex);
    for (;;) {
      if (asked_at && Clock::now() >= *asked_at) return true;
      if (gone) return asked_at.has_value();
      if (asked_at) {
        changed.wait_until(lock, *asked_at);
      } else {
        changed.wait(lock);
      }
    }
  }
};

Aborter::Aborter(Calls calls, Deadline deadline) : state_(std::make_shared<State>()) {
  auto begun = state_->begun.get_future();
  std::thread([state = state_, calls = std::move(calls)]() mutable {
    try {
      calls.begin();
    } catch (...) {
      state->begun.set_exception(std::current_exception());
      return;
    }
    state->begun.set_value();
    if (state->wait_to_be_asked()) calls.end();
    calls = {};
    state->ended.set_value();
  }).detach();
  if (begun.wait_until(deadline) != std::future_status::ready)
    throw std::runtime_error("[tensor.nccl] the thread that aborts did not get its device in time");
  begun.get();
}

Aborter::~Aborter() {
  std::lock_guard lock(state_->mutex);
  state_->gone = true;
  state_->changed.notify_all();
}

void Aborter::ask() {
  ask_by(Clock::now());
}

void Aborter::ask_by(Deadline deadline) {
  std::lock_guard lock(state_->mutex);
  if (state_->asked_at && *state_->asked_at <= deadline) return;
  state_->asked_at = deadline;
  state_->changed.notify_all();
}

void Aborter::await_end(std::chrono::milliseconds span) const {
  std::optional<Deadline> asked_at;
  {
    std::lock_guard lock(state_->mutex);
    asked_at = state_->asked_at;
  }
  if (asked_at) state_->end.wait_until(*asked_at + span);
}

}  // namespace troupe::tensor::nccl
