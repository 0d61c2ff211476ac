#include "actors/stage/task_ends.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

/// Time between two looks: well below the shortest task.
constexpr std::chrono::microseconds kLook{100};

std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

}  // namespace

bool PeerWaits::now(const std::vector<DeviceSpan>& waits, std::int64_t now_ns) {
  while (wait_ < waits.size() && waits[wait_].end->passed()) {
    ++wait_;
    since_ns_.reset();
  }
  if (wait_ == waits.size() || !waits[wait_].begin->passed()) return false;
  if (!since_ns_) since_ns_ = now_ns;
  return now_ns - *since_ns_ <= patience_.count();
}

TaskEnds::TaskEnds(Tools tools) : tools_(std::move(tools)), thread_([this] { loop(); }) {}

TaskEnds::~TaskEnds() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void TaskEnds::add(Task task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_all();
}

void TaskEnds::loop() {
  tools_.begin();
  for (;;) {
    Task task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
      if (closing_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    PeerWaits peers(tools_.patience);
    while (!settle(task, peers)) {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kLook, [this] { return closing_; })) return;
    }
  }
}

bool TaskEnds::settle(Task& task, PeerWaits& peers) {
  if (tools_.ended(task.epoch)) return true;
  RanAt times;
  try {
    if (!task.ran.end->passed()) {
      if (peers.now(task.waits, tools_.now_ns())) tools_.waits();
      return false;
    }
    times = times_of(task);
  } catch (const std::exception& error) {
    task.fail(error);
    return true;
  }
  last_end_ = std::move(task.ran.end);
  last_end_ns_ = times.ran.end_ns;
  task.tell(times);
  return true;
}

RanAt TaskEnds::times_of(const Task& task) {
  const auto& end = *task.ran.end;
  // A look comes late, the device's own time does not: the sooner of the two is nearer.
  std::int64_t end_ns = tools_.now_ns();
  if (last_end_)
    end_ns = std::min(end_ns, last_end_ns_ + nanoseconds(end.seconds_since(*last_end_)));
  const auto before_end = [&](const DeviceMark& mark) {
    return end_ns - nanoseconds(end.seconds_since(mark));
  };
  RanAt times{{before_end(*task.ran.begin), end_ns}, {}};
  for (const auto& wait : task.waits)
    times.waits.push_back({before_end(*wait.begin), before_end(*wait.end)});
  return times;
}

}  // namespace troupe::actors
