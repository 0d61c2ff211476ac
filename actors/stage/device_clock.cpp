#include "actors/stage/device_clock.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <mutex>
#include <utility>
#include <vector>

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

}  // namespace

std::shared_ptr<DeviceClock> make_device_clock(at::Device device) {
  return device.is_cpu() ? nullptr : std::make_shared<EventClock>(device);
}

}  // namespace troupe::actors
