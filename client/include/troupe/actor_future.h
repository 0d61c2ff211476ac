#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "troupe/actor_class.h"
#include "troupe/result.h"

namespace troupe {

using Milliseconds = std::chrono::milliseconds;

namespace detail {

/// Result that stays with the process that made it until somebody fetches it. That process lets the
/// result go when the last RemoteValue of it goes.
class RemoteValue {
 public:
  virtual ~RemoteValue() = default;
  virtual std::uint64_t bytes() const = 0;
  /// Waits until the result's bytes are here, for `deadline` at most; returns them, or the error.
  virtual Result<std::shared_ptr<const std::string>> fetch(Milliseconds deadline) = 0;
};

/// Outcome of a call: bytes here, bytes elsewhere, or an error.
struct Outcome {
  std::shared_ptr<const std::string> bytes = nullptr;
  std::shared_ptr<RemoteValue> remote = nullptr;
  Error error = {};

  bool ok() const { return bytes || remote; }
};

/// State of a call under way, shared by the thread that waits and by the link. Thread-safe.
class CallState {
 public:
  explicit CallState(std::shared_ptr<Caller> caller) : caller_(std::move(caller)) {}

  /// Ends the call. Only the first outcome counts.
  void finish(Outcome outcome) {
    std::vector<std::function<void()>> told;
    {
      std::lock_guard lock(mutex_);
      if (done_) return;
      outcome_ = std::move(outcome);
      done_ = true;
      told.swap(watchers_);
    }
    changed_.notify_all();
    for (const auto& tell : told)
      tell();
  }
  bool done() const {
    std::lock_guard lock(mutex_);
    return done_;
  }
  bool wait_until(std::chrono::steady_clock::time_point until) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, until, [&] { return done_; });
  }
  /// Calls `action` once the call is done, on whatever thread ends it; at once if the call is done
  /// already.
  void when_done(std::function<void()> action) {
    {
      std::lock_guard lock(mutex_);
      if (!done_) {
        watchers_.push_back(std::move(action));
        return;
      }
    }
    action();
  }
  /// Returns the call's outcome; empty until the call is done.
  Outcome outcome() const {
    std::lock_guard lock(mutex_);
    return outcome_;
  }
  void keep(std::shared_ptr<const std::string> bytes) {
    std::lock_guard lock(mutex_);
    outcome_.bytes = std::move(bytes);
  }
  const std::shared_ptr<Caller>& caller() const { return caller_; }

 private:
  std::shared_ptr<Caller> caller_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Outcome outcome_;
  std::vector<std::function<void()>> watchers_;
};

/// True on a thread of the caller's own, where a wait would wait for itself.
inline bool waits_for_itself(const Caller& caller);
/// Waits for a call. True once the call is done, false when `until` has passed.
inline bool wait_for(Caller& caller, CallState& state, std::chrono::steady_clock::time_point until);

}  // namespace detail

/// Result of a call that may still be under way. Copies share the result. A large result stays with
/// the actor that made it until `wait` is called; if the future is an argument for another actor,
/// the result goes there directly.
template <class R>
class Future {
 public:
  using Type = R;
  Future() = default;
  explicit Future(std::shared_ptr<detail::CallState> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state_ && state_->done(); }
  /// Returns the result, and waits for it for `deadline` at most. Errors: timeout (the call goes
  /// on), exception (its text), died (how), restarting, bad_request (wrong types), not_found, lost,
  /// overloaded.
  Result<R> wait(Milliseconds deadline) const {
    if (!state_) return Error{ErrorCode::bad_request, "[future] is empty"};
    const auto until = std::chrono::steady_clock::now() + deadline;
    if (!state_->done()) {
      const auto& caller = state_->caller();
      if (caller && detail::waits_for_itself(*caller))
        return Error{ErrorCode::bad_request,
                     "[future] wait would wait for itself inside a callback"};
      if (!(caller ? detail::wait_for(*caller, *state_, until) : state_->wait_until(until)))
        return Error{ErrorCode::timeout, "[future] no result within " +
                                             std::to_string(deadline.count()) +
                                             " ms; the call goes on"};
    }
    auto outcome = state_->outcome();
    if (!outcome.ok()) return outcome.error;
    if (!outcome.bytes) {
      const auto left =
          std::chrono::duration_cast<Milliseconds>(until - std::chrono::steady_clock::now());
      auto fetched = outcome.remote->fetch(std::max(left, Milliseconds(1)));
      if (!fetched) return fetched.error();
      state_->keep(fetched.value());
      outcome.bytes = fetched.value();
    }
    try {
      ValueReader in(*outcome.bytes, state_->caller());
      R value{};
      Value<R>::read(in, value);
      in.expect_end();
      return value;
    } catch (const ValueError& error) {
      return Error{ErrorCode::protocol, error.what()};
    }
  }
  const std::shared_ptr<detail::CallState>& state() const { return state_; }

 private:
  std::shared_ptr<detail::CallState> state_;
};

namespace detail {

template <class States>
Result<std::size_t> wait_any(const States& states, Milliseconds deadline) {
  struct Bell {
    std::mutex mutex;
    std::condition_variable rang;
    bool ringing = false;
  };
  const auto bell = std::make_shared<Bell>();
  const auto until = std::chrono::steady_clock::now() + deadline;
  bool armed = false;
  for (;;) {
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i] && states[i]->done()) return i;
    }
    if (!std::exchange(armed, true)) {
      for (const auto& state : states) {
        if (!state) return Error{ErrorCode::bad_request, "[future] is empty"};
        if (state->caller() && waits_for_itself(*state->caller()))
          return Error{ErrorCode::bad_request,
                       "[future] any_of would wait for itself inside a callback"};
        state->when_done([bell] {
          std::lock_guard lock(bell->mutex);
          bell->ringing = true;
          bell->rang.notify_all();
        });
      }
    }
    std::unique_lock lock(bell->mutex);
    if (!bell->rang.wait_until(lock, until, [&] { return std::exchange(bell->ringing, false); }))
      return Error{ErrorCode::timeout, "[future] none of " + std::to_string(states.size()) +
                                           " came within " + std::to_string(deadline.count()) +
                                           " ms"};
  }
}

}  // namespace detail

/// Waits until a future is done, also with an error, and returns its index; of several the first.
/// Error: timeout.
template <class R>
Result<std::size_t> any_of(const std::vector<Future<R>>& futures, Milliseconds deadline) {
  std::vector<std::shared_ptr<detail::CallState>> states;
  for (const auto& future : futures)
    states.push_back(future.state());
  return detail::wait_any(states, deadline);
}
template <class... Rs>
Result<std::size_t> any_of(Milliseconds deadline, const Future<Rs>&... futures) {
  return detail::wait_any(std::vector<std::shared_ptr<detail::CallState>>{futures.state()...},
                          deadline);
}

/// Returns all results in order, or the first error, which says whose it is.
template <class R>
Result<std::vector<R>> all_of(const std::vector<Future<R>>& futures, Milliseconds deadline) {
  const auto until = std::chrono::steady_clock::now() + deadline;
  std::vector<R> values;
  values.reserve(futures.size());
  for (std::size_t i = 0; i < futures.size(); ++i) {
    const auto left =
        std::chrono::duration_cast<Milliseconds>(until - std::chrono::steady_clock::now());
    auto value = futures[i].wait(std::max(left, Milliseconds(0)));
    if (!value)
      return Error{value.error().code, "future " + std::to_string(i) + " of " +
                                           std::to_string(futures.size()) + ": " +
                                           value.error().what};
    values.push_back(std::move(value.value()));
  }
  return values;
}

}  // namespace troupe
