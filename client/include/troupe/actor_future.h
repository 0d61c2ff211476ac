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

/// A result that stays with the process that made it until somebody fetches it. The holder lets it
/// go when the last of these goes.
class RemoteValue {
 public:
  virtual ~RemoteValue() = default;
  virtual std::uint64_t bytes() const = 0;
  /// Here within the deadline, or why not. Waits.
  virtual Result<std::shared_ptr<const std::string>> fetch(Milliseconds deadline) = 0;
};

/// What came of a call: bytes here, bytes elsewhere, or an error.
struct Outcome {
  std::shared_ptr<const std::string> bytes = nullptr;
  std::shared_ptr<RemoteValue> remote = nullptr;
  Error error = {};

  bool ok() const { return bytes || remote; }
};

/// A call under way, between the one who waits and the link. Thread-safe.
class CallState {
 public:
  explicit CallState(std::shared_ptr<Caller> caller) : caller_(std::move(caller)) {}

  /// The first ending counts.
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
  /// Calls `action` once it is done, on whatever thread ends it, or now.
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
  /// Once done.
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
/// False past `until`.
inline bool wait_for(Caller& caller, CallState& state, std::chrono::steady_clock::time_point until);

}  // namespace detail

/// A result that will come. Copies share it. Large results stay with the actor that made them until
/// `wait` is called; handed to another actor as an argument they go there directly.
template <class R>
class Future {
 public:
  using Type = R;
  Future() = default;
  explicit Future(std::shared_ptr<detail::CallState> state) : state_(std::move(state)) {}

  bool valid() const { return state_ != nullptr; }
  bool ready() const { return state_ && state_->done(); }
  /// The result, for `deadline` at most. Errors: timeout (the call goes on), exception (its text),
  /// died (how), restarting, bad_request (wrong types), not_found, lost, overloaded.
  Result<R> wait(Milliseconds deadline) const {
    if (!state_) return Error{"bad_request", "[future] is empty"};
    const auto until = std::chrono::steady_clock::now() + deadline;
    if (!state_->done()) {
      const auto& caller = state_->caller();
      if (caller && detail::waits_for_itself(*caller))
        return Error{"bad_request", "[future] wait would wait for itself inside a callback"};
      if (!(caller ? detail::wait_for(*caller, *state_, until) : state_->wait_until(until)))
        return Error{"timeout", "[future] no result within " + std::to_string(deadline.count()) +
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
      return Error{"protocol", error.what()};
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
        if (!state) return Error{"bad_request", "[future] is empty"};
        if (state->caller() && waits_for_itself(*state->caller()))
          return Error{"bad_request", "[future] any_of would wait for itself inside a callback"};
        state->when_done([bell] {
          std::lock_guard lock(bell->mutex);
          bell->ringing = true;
          bell->rang.notify_all();
        });
      }
    }
    std::unique_lock lock(bell->mutex);
    if (!bell->rang.wait_until(lock, until, [&] { return std::exchange(bell->ringing, false); }))
      return Error{"timeout", "[future] none of " + std::to_string(states.size()) +
                                  " came within " + std::to_string(deadline.count()) + " ms"};
  }
}

}  // namespace detail

/// The index of one that is done, also with an error; the first of several. Error: timeout.
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

/// All results in order, or the first error, naming which.
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
