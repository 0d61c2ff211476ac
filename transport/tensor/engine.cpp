#include "transport/tensor/engine.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>

namespace troupe::tensor {
namespace {

constexpr auto kSpin = std::chrono::microseconds(8);
constexpr int kMaxSpinCredit = 16;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Engine::Engine() : guard_(boost::asio::make_work_guard(io_)), event_(io_) {
  const int event = ::dup(doorbell_.event_fd());
  if (event < 0) throw_errno("dup");
  event_.assign(event);
  watch_doorbell();
  thread_ = std::thread([this] { io_.run(); });
}

Engine::~Engine() {
  io_.stop();
  thread_.join();
}

void Engine::watch_doorbell() {
  event_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [this](const boost::system::error_code& error) {
                      if (error) return;
                      doorbell_.clear_event();
                      watch_doorbell();
                      kick();
                    });
}

void Engine::peer_died() {
  doorbell_.clear_event();
  kick();
}

void Engine::add(Pollable* pollable) {
  std::lock_guard lock(drive_mutex_);
  pollables_.push_back(pollable);
}

void Engine::remove(Pollable* pollable) {
  exclusively([&] { std::erase(pollables_, pollable); });
}

Engine::Pass Engine::pass() {
  bool more = false;
  bool settled = false;
  look_again_ = true;
  do {
    if (!drive_mutex_.try_lock()) {
      if (settled) doorbell_.ring_attendants();
      return Pass::busy;
    }
    std::lock_guard lock(drive_mutex_, std::adopt_lock);
    look_again_ = false;
    more = false;
    for (Pollable* pollable : pollables_)
      more |= pollable->advance();
    settled |= std::exchange(settled_, false);
  } while (look_again_.load());
  if (settled && doorbell_.attendants() > 0) doorbell_.ring_attendants();
  return more ? Pass::more : Pass::blocked;
}

void Engine::kick() {
  if (pass() == Pass::more) wake_progress_thread();
}

void Engine::rekick() {
  if (look_again_.load()) kick();
}

void Engine::wake_progress_thread() {
  if (progress_posted_.exchange(true)) return;
  boost::asio::post(io_, [this] {
    progress_posted_ = false;
    kick();
  });
}

bool Engine::spin(std::uint32_t seen) {
  if (spin_credit_.load(std::memory_order_relaxed) <= 0) {
    spin_credit_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (doorbell_.rings() != seen) {
        if (spin_credit_.load(std::memory_order_relaxed) < kMaxSpinCredit)
          spin_credit_.fetch_add(1, std::memory_order_relaxed);
        return true;
      }
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  spin_credit_.fetch_sub(4, std::memory_order_relaxed);
  return false;
}

void Engine::wait(Operation& operation, Deadline deadline) {
  doorbell_.attend();
  std::uint32_t seen = 0;
  Pass last = Pass::blocked;
  for (;;) {
    seen = doorbell_.rings();
    last = pass();
    if (operation.done()) break;
    if (last == Pass::more) {
      if (std::chrono::steady_clock::now() >= deadline) break;
      continue;
    }
    if (spin(seen)) continue;
    if (std::chrono::steady_clock::now() >= deadline) break;
    doorbell_.sleep(seen, deadline);
  }
  doorbell_.leave();
  // A ring that came while this thread attended may be for another operation.
  if (last == Pass::more || doorbell_.rings() != seen) wake_progress_thread();
}

}  // namespace troupe::tensor
