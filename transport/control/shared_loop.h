#pragma once
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/files.h"

namespace troupe::control {

/// An Asio loop with a thread of its own. Another thread may take that thread's place while it
/// waits for what the loop's handlers will do. So an answer wakes the one who waits for it and
/// nobody else; each hand-over between threads would cost one more wake-up.
///
/// One thread at a time runs handlers. When a guest leaves, nobody runs the loop at first: that
/// guest, or another, is usually back in a moment. When none is, the loop's own thread goes on,
/// `kGrace` to twice that later, or at once if something is posted.
class SharedLoop {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kGrace{1000};

  /// `on_error` is told of what a handler throws, and the loop goes on; without it, or if it throws
  /// itself, `run` ends and throws that. Throws std::system_error.
  explicit SharedLoop(std::function<void(const std::exception&)> on_error = {});
  SharedLoop(const SharedLoop&) = delete;
  SharedLoop& operator=(const SharedLoop&) = delete;

  boost::asio::io_context& io() { return io_; }

  /// Runs handlers on this thread, except while a guest does, until `stop`. No guest is inside any
  /// more when it returns.
  void run();
  void stop();

  /// Runs handlers on this thread until `done()`, which they make true; at most until `until`, or
  /// until there is a bystander. False when somebody else runs them, or the loop has stopped. Not
  /// in a handler.
  bool run_until(const std::function<bool()>& done, Clock::time_point until);

  /// Runs `action` as a handler, from any thread: here and now where this follows on a `run_until`
  /// of the same thread and nobody runs handlers, else later.
  void dispatch(std::function<void()> action);
  /// Runs `action` as a handler later. From any thread.
  void post(std::function<void()> action);
  /// True in a handler.
  bool running_here() const { return thread_.load() == std::this_thread::get_id(); }

  /// Keeps guests out while it lives: the loop's own thread runs the handlers. For those who wait
  /// in another way, and for callbacks of users, which may not run on a thread that holds who knows
  /// what. Guests that are inside leave after the handler that they run.
  class LoopPin {
   public:
    explicit LoopPin(std::shared_ptr<SharedLoop> loop);
    ~LoopPin();
    LoopPin(const LoopPin&) = delete;
    LoopPin& operator=(const LoopPin&) = delete;

   private:
    std::shared_ptr<SharedLoop> loop_;
  };

 private:
  enum class Runner { nobody, owner, guest };

  bool enter(Clock::time_point until);
  void leave(bool back_soon);
  bool take(Runner runner);  // under the lock
  bool wanted() const { return wanted_.load(std::memory_order_relaxed); }
  void fail(std::exception_ptr error);
  template <class Handlers>
  void guarded(Handlers&& run);
  void handle(Clock::time_point until);
  void run_as_owner();
  /// Takes the owner's turn, as soon as no guest is inside.
  void call_owner();
  /// Makes the owner look again after this time.
  void set_alarm(std::chrono::nanoseconds in);
  void await_alarm();

  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::function<void(const std::exception&)> on_error_;
  FileHandle alarm_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<Runner> runner_{Runner::nobody};
  std::atomic<std::thread::id> thread_{};  // thread that runs handlers
  std::atomic<bool> wanted_{false};        // a guest waits for the owner to leave
  std::atomic<bool> called_{false};
  bool alarm_set_ = false;
  Clock::time_point left_at_{};
  std::thread::id just_left_{};  // the guest whose next word may be `dispatch`
  std::atomic<int> bystanders_{0};
  std::exception_ptr failure_;
};

}  // namespace troupe::control
