#pragma once
#include <c10/core/Device.h>

#include <memory>

namespace troupe::actors {

/// A point in what a device is given to do.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  /// The device has come this far. Never waits; throws what the device has run into.
  virtual bool passed() const = 0;
  /// Seconds of the device from there to here; both were passed.
  virtual double seconds_since(const DeviceMark& earlier) const = 0;
};

/// Sets marks behind what the calling thread has issued on its current stream.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  virtual std::unique_ptr<DeviceMark> mark() = 0;
};

/// Null on a CPU, where what was called has been done.
std::shared_ptr<DeviceClock> make_device_clock(at::Device device);

}  // namespace troupe::actors
