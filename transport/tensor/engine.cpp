#include "transport/tensor/engine.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <climits>
#include <ctime>

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

Doorbell::Doorbell() : memory_(make_memfd("troupe-doorbell", kBytes)) {
  event_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event_) throw_errno("eventfd");
  mapping_ = Mapping::of(memory_.get(), kBytes);
}

Doorbell::Doorbell(const UniqueFd& memory, UniqueFd event)
    : event_(std::move(event)), mapping_(Mapping::of(memory.get(), kBytes)) {}

void Doorbell::ring() {
  words().rings.fetch_add(1);
  if (words().attending.load() > 0) {
    wake_sleepers();
  } else if (words().signalled.exchange(1) == 0) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }
}

void Doorbell::ring_attendants() {
  words().rings.fetch_add(1);
  wake_sleepers();
}

void Doorbell::wake_sleepers() {
  if (words().sleeping.load() > 0)
    ::syscall(SYS_futex, &words().rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::sleep(std::uint32_t seen, Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(
      deadline - std::chrono::steady_clock::now());
  if (left.count() <= 0) return;
  timespec span{};
  span.tv_sec = static_cast<time_t>(left.count() / 1'000'000'000);
  span.tv_nsec = static_cast<long>(left.count() % 1'000'000'000);
  words().sleeping.fetch_add(1);
  ::syscall(SYS_futex, &words().rings, FUTEX_WAIT, seen, &span, nullptr, 0);
  words().sleeping.fetch_sub(1);
}

void Doorbell::clear_event() {
  // In this order: the other way round a ring between the two would leave the flag up over an empty
  // descriptor, and no later ring would write to it.
  std::uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
  words().signalled.store(0);
}

std::string Membership::prefix() const {
  return "[tensor." + backend + "] group \"" + group + "\" rank " + std::to_string(rank) + ": ";
}

void Operation::wait(Deadline deadline) {
  if (!done()) {
    const auto start = std::chrono::steady_clock::now();
    if (const auto engine = member_->engine.lock()) engine->wait(*this, deadline);
    const auto now = std::chrono::steady_clock::now();
    member_->waiting_nanoseconds +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - start).count();
  }
  switch (state_.load(std::memory_order_acquire)) {
    case State::succeeded:
      return;
    case State::failed:
      throw error();
    case State::pending:
      throw TransferError(Failure::timeout, peer_,
                          member_->prefix() + describe() + ": deadline passed");
  }
}

void Operation::succeed() {
  settle(State::succeeded);
}

void Operation::fail(Failure failure, int peer, const std::string& cause) {
  if (done()) return;
  failure_ = failure;
  culprit_ = peer;
  cause_ = cause;
  settle(State::failed);
}

void Operation::settle(State state) {
  tensors_.clear();
  open_gate = nullptr;
  state_.store(state, std::memory_order_release);
}

TransferError Operation::error() const {
  return {failure_, culprit_, member_->prefix() + describe() + ": " + cause_};
}

std::string Operation::describe() const {
  std::string text = std::string(kind_) + " of " + std::to_string(bytes_) + " bytes";
  if (peer_ >= 0) text += std::string(" ") + relation_ + " rank " + std::to_string(peer_);
  return text;
}

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
