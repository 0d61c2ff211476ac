#include "actors/device_error.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "base/error_text.h"

namespace troupe::actors {
namespace {

/// Codes of CUDA errors that stick, with CUDA's names without `cudaError`.
constexpr std::array kSticking = {
    214,  // ECCUncorrectable
    220,  // NvlinkUncorrectable
    226,  // Contained
    kIllegalAddress,
    702,  // LaunchTimeout
    709,  // ContextIsDestroyed
    710,  // Assert
    714,  // HardwareStackError
    715,  // IllegalInstruction
    716,  // MisalignedAddress
    717,  // InvalidAddressSpace
    718,  // InvalidPc
    719,  // LaunchFailure
    721,  // TensorMemoryLeak
    810,  // MpsClientTerminated
    911,  // ExternalDevice
};

std::optional<std::string> told(const std::exception& error) {
  const auto* of_device = dynamic_cast<const c10::AcceleratorError*>(&error);
  if (of_device == nullptr || !sticks(of_device->get_error_code())) return std::nullopt;
  return "error " + std::to_string(of_device->get_error_code()) + ", " +
         first_line(of_device->what_without_backtrace());
}

}  // namespace

bool sticks(int cuda_error) {
  return std::ranges::find(kSticking, cuda_error) != kSticking.end();
}

std::optional<std::string> lost_device(const std::exception& error, at::Device device) {
  if (auto why = told(error)) return why;
  if (!device.is_cuda()) return std::nullopt;
  try {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.queryStream(guard.getStream(device));
  } catch (const std::exception& answer) {
    return told(answer);
  }
  return std::nullopt;
}

}  // namespace troupe::actors
