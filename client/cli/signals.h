#pragma once
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace troupe::cli {

/// Catches SIGINT, SIGTERM and SIGHUP while it lives, on a thread of its own. A SIGHUP that was
/// ignored when the program began, as nohup does it, stays ignored.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  /// Returns the first signal that came, 0 if none has.
  int caught() const { return caught_; }
  /// Returns the token that the first signal stops.
  std::stop_token token() const { return stop_.get_token(); }
  /// Returns the number of signals that have come.
  int count() const { return count_; }
  /// Returns the exit code that a shell expects of a process that ended by that signal.
  int exit_code() const { return 128 + caught_; }
  /// Sets the action for the next signal; calls it at once if a signal has come. Returns when no
  /// earlier action is running.
  void on_signal(std::function<void()> action);

 private:
  void listen();

  std::mutex mutex_;
  std::function<void()> action_;
  std::atomic<int> caught_ = 0;
  std::atomic<int> count_ = 0;
  std::stop_source stop_;
  boost::asio::io_context io_;
  boost::asio::signal_set signals_;
  std::thread thread_;
};

/// Gives a SignalWatch something to do for a while.
class ActOnSignal {
 public:
  ActOnSignal(SignalWatch& signals, std::function<void()> action) : signals_(signals) {
    signals_.on_signal(std::move(action));
  }
  ~ActOnSignal() { signals_.on_signal(nullptr); }
  ActOnSignal(const ActOnSignal&) = delete;
  ActOnSignal& operator=(const ActOnSignal&) = delete;

 private:
  SignalWatch& signals_;
};

}  // namespace troupe::cli
