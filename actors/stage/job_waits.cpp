#include "actors/stage/job_waits.h"

#include <algorithm>

namespace troupe::actors {
namespace {

/// That a task tells of one by one.
constexpr std::size_t kMostWaits = 64;

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

void JobWaits::note(std::chrono::steady_clock::time_point start) {
  const auto ns = [](std::chrono::steady_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  };
  const auto end = std::chrono::steady_clock::now();
  seconds_ += std::chrono::duration<double>(end - start).count();
  if (spans_.size() < kMostWaits) {
    spans_.push_back({ns(start), ns(end)});
  } else {
    spans_.back().end_ns = ns(end);
  }
}

}  // namespace troupe::actors
