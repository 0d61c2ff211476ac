#include "transport/control/shared_loop.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace troupe::control {
namespace asio = boost::asio;

SharedLoop::SharedLoop(std::function<void(const std::exception&)> on_error)
    : work_(io_.get_executor()),
      on_error_(std::move(on_error)),
      alarm_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC)) {
  if (!alarm_) throw std::system_error(errno, std::generic_category(), "[loop] no timer");
}

bool SharedLoop::take(Runner runner) {
  if (runner_ != Runner::nobody || io_.stopped()) return false;
  runner_ = runner;
  thread_ = std::this_thread::get_id();
  just_left_ = std::thread::id();
  return true;
}

void SharedLoop::fail(std::exception_ptr error) {
  failure_ = std::move(error);
  stop();
}

template <class Handlers>
void SharedLoop::guarded(Handlers&& run) {
  const auto tell = [this](const std::exception& error) {
    if (!on_error_) return fail(std::current_exception());
    try {
      on_error_(error);
    } catch (...) {
      fail(std::current_exception());
    }
  };
  try {
    run();
  } catch (const std::exception& error) {
    tell(error);
  } catch (...) {
    tell(std::runtime_error("something that is no std::exception was thrown"));
  }
}

void SharedLoop::run() {
  for (;;) {
    bool mine = false;
    {
      std::lock_guard lock(mutex_);
      if (io_.stopped() && runner_ != Runner::guest) break;
      const bool left = called_ || Clock::now() - left_at_ >= kGrace;
      mine = left && !wanted() && take(Runner::owner);
      // While a guest is inside, its leaving sets the alarm.
      if (!mine && runner_ != Runner::guest) set_alarm(kGrace);
    }
    if (mine) {
      run_as_owner();
    } else {
      await_alarm();
    }
  }
  changed_.notify_all();
  if (failure_) std::rethrow_exception(failure_);
}

void SharedLoop::run_as_owner() {
  called_ = false;
  while (!wanted() && !io_.stopped())
    handle(Clock::time_point::max());
  {
    std::lock_guard lock(mutex_);
    runner_ = Runner::nobody;
    thread_ = std::thread::id();
    left_at_ = Clock::now();
  }
  changed_.notify_all();
}

void SharedLoop::handle(Clock::time_point until) {
  guarded([&] {
    if (until == Clock::time_point::max()) {
      io_.run_one();
    } else {
      io_.run_one_until(until);
    }
  });
}

void SharedLoop::stop() {
  io_.stop();
  call_owner();
}

bool SharedLoop::enter(Clock::time_point until) {
  std::unique_lock lock(mutex_);
  if (wanted() || bystanders_ > 0) return false;
  if (runner_ == Runner::owner) {
    wanted_ = true;
    asio::post(io_, [] {});  // wakes it
    changed_.wait_until(lock, until, [this] { return runner_ != Runner::owner; });
    wanted_ = false;
  }
  return take(Runner::guest);
}

void SharedLoop::leave(bool back_soon) {
  std::lock_guard lock(mutex_);
  runner_ = Runner::nobody;
  thread_ = std::thread::id();
  just_left_ = back_soon ? std::this_thread::get_id() : std::thread::id();
  left_at_ = Clock::now();
  if (io_.stopped() || bystanders_ > 0) called_ = true;
  if (called_) return set_alarm(std::chrono::nanoseconds(1));
  if (!alarm_set_) set_alarm(kGrace);
}

bool SharedLoop::run_until(const std::function<bool()>& done, Clock::time_point until) {
  if (!enter(until)) return false;
  while (!done() && !io_.stopped() && bystanders_ == 0 && Clock::now() < until)
    handle(until);
  leave(true);
  return true;
}

void SharedLoop::dispatch(std::function<void()> action) {
  bool mine = false;
  {
    std::lock_guard lock(mutex_);
    mine = just_left_ == std::this_thread::get_id() && !wanted() && bystanders_ == 0 &&
           take(Runner::guest);
  }
  if (!mine) return post(std::move(action));
  guarded(action);
  leave(false);
}

void SharedLoop::post(std::function<void()> action) {
  asio::post(io_, std::move(action));
  if (runner_ == Runner::nobody) call_owner();
}

void SharedLoop::call_owner() {
  std::lock_guard lock(mutex_);
  called_ = true;
  set_alarm(std::chrono::nanoseconds(1));
}

void SharedLoop::set_alarm(std::chrono::nanoseconds in) {
  alarm_set_ = true;
  itimerspec at{};
  at.it_value.tv_nsec = in.count();
  timerfd_settime(alarm_.get(), 0, &at, nullptr);
}

void SharedLoop::await_alarm() {
  std::uint64_t rings = 0;
  while (read(alarm_.get(), &rings, sizeof rings) < 0 && errno == EINTR) {
  }
  std::lock_guard lock(mutex_);
  alarm_set_ = false;
}

SharedLoop::LoopPin::LoopPin(std::shared_ptr<SharedLoop> loop) : loop_(std::move(loop)) {
  {
    std::lock_guard lock(loop_->mutex_);
    ++loop_->bystanders_;
  }
  if (loop_->runner_ == Runner::nobody) loop_->call_owner();
}

SharedLoop::LoopPin::~LoopPin() {
  std::lock_guard lock(loop_->mutex_);
  --loop_->bystanders_;
}

}  // namespace troupe::control
