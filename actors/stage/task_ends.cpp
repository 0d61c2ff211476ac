#include "actors/stage/task_ends.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::actors {
namespace {

/// Events that were passed serve again: to make one is a call of the driver's.
class EventPool {
 public:
  explicit EventPool(at::DeviceType type) : type_(type) {}

  c10::Event take() {
    std::lock_guard lock(mutex_);
    if (spare_.empty()) return c10::Event(type_, c10::EventFlag::BACKEND_DEFAULT);
    auto event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }
  void give_back(c10::Event event) {
    std::lock_guard lock(mutex_);
    spare_.push_back(std::move(event));
  }

 private:
  at::DeviceType type_;
  std::mutex mutex_;
  std::vector<c10::Event> spare_;
};

class EventMark final : public DeviceMark {
 public:
  EventMark(std::shared_ptr<EventPool> pool, at::Device device)
      : pool_(std::move(pool)), event_(pool_->take()) {
    event_.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  ~EventMark() override { pool_->give_back(std::move(event_)); }
  bool passed() const override { return event_.query(); }
  double seconds_since(const DeviceMark& earlier) const override {
    return static_cast<const EventMark&>(earlier).event_.elapsedTime(event_) / 1e3;
  }

 private:
  std::shared_ptr<EventPool> pool_;
  c10::Event event_;
};

class EventClock final : public DeviceClock {
 public:
  explicit EventClock(at::Device device)
      : device_(device), pool_(std::make_shared<EventPool>(device.type())) {}
  std::unique_ptr<DeviceMark> mark() override {
    return std::make_unique<EventMark>(pool_, device_);
  }

 private:
  at::Device device_;
  std::shared_ptr<EventPool> pool_;
};

/// Time between two looks: well below the shortest task.
constexpr std::chrono::microseconds kLook{100};

std::int64_t nanoseconds(double seconds) {
  return std::llround(seconds * 1e9);
}

}  // namespace

std::shared_ptr<DeviceClock> make_device_clock(at::Device device) {
  return device.is_cpu() ? nullptr : std::make_shared<EventClock>(device);
}

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
