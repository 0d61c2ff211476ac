#include "transport/tensor/doorbell.h"

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace troupe::tensor {

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

}  // namespace troupe::tensor
