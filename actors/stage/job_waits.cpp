#include "actors/stage/job_waits.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <thread>

namespace troupe::actors {
namespace {

/// Most waits of a task that are reported one by one.
constexpr std::size_t kMostWaits = 64;

std::int64_t nanoseconds_of(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// Waits a second at most; false when the operation is still under way then.
bool wait_slice(const tensor::Work& work, tensor::Deadline last) {
  const auto soon = std::min(last, tensor::within(std::chrono::seconds(1)));
  try {
    work.wait(soon);
    return true;
  } catch (const tensor::TransferError& error) {
    if (error.failure() != tensor::Failure::timeout || soon == last) throw;
    return false;
  }
}

}  // namespace

void JobWaits::wait(const tensor::Work& work) {
  const auto last = tensor::within(deadline_);
  if (work.done()) {
    work.wait(last);
    return;
  }
  if (clock_) return wait_on_device(work);
  const auto start = std::chrono::steady_clock::now();
  while (!wait_slice(work, last))
    progress_.tick_in(epoch_);  // waiting is no hanging
  note(start);
}

void JobWaits::wait_on_device(const tensor::Work& work) {
  const auto last = tensor::within(deadline_);
  if (device_spans_.size() >= kMostWaits) {
    work.join_stream(last);
    device_spans_.back().end = clock_->mark();
    return;
  }
  auto before = clock_->mark();
  work.join_stream(last);
  device_spans_.push_back({std::move(before), clock_->mark()});
}

void JobWaits::await_device() {
  if (!clock_) return;
  const auto mark = clock_->mark();
  for (const auto pause = pause_for_device(); !mark->passed();)
    pause();
}

std::function<void()> JobWaits::pause_for_device() const {
  return [this, last = tensor::within(deadline_), peers = std::make_shared<PeerWaits>(deadline_)] {
    const auto now = std::chrono::steady_clock::now();
    if (now > last)
      throw std::runtime_error(
          "[actor] the device has not done within its deadline what the host waits for");
    if (progress_.ended(epoch_))
      throw EpochEnded("[actor] epoch " + std::to_string(epoch_) + " has ended");
    // Waiting for a peer is no hanging; anything else is no progress.
    if (peers->now(device_spans_, nanoseconds_of(now))) progress_.tick();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  };
}

void JobWaits::note(std::chrono::steady_clock::time_point start) {
  const auto end = std::chrono::steady_clock::now();
  seconds_ += std::chrono::duration<double>(end - start).count();
  if (spans_.size() < kMostWaits) {
    spans_.push_back({nanoseconds_of(start), nanoseconds_of(end)});
  } else {
    spans_.back().end_ns = nanoseconds_of(end);
  }
}

}  // namespace troupe::actors
