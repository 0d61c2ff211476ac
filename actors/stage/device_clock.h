#pragma once
#include <c10/core/Device.h>

#include <memory>

namespace troupe::actors {

/// A point in what a device is given to do.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// Returns whether the device has come to this mark. Never waits; throws the error that the
  /// device has met.
  virtual bool passed() const = 0;
  /// Returns the device's seconds from `earlier` to this mark; both were passed.
  virtual double seconds_since(const DeviceMark& earlier) const = 0;
};

/// Sets marks behind what the calling thread has issued on its current stream.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  virtual std::unique_ptr<DeviceMark> mark() = 0;
};

/// Returns the device's clock; null on a CPU, where a call has been done when it returns.
std::shared_ptr<DeviceClock> make_device_clock(at::Device device);

}  // namespace troupe::actors
