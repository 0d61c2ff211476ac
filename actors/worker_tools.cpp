#include "actors/worker_tools.h"

#include <c10/util/Exception.h>

#include <new>
#include <stdexcept>
#include <string_view>

#include "actors/device.h"
#include "base/available_memory.h"
#include "base/error_text.h"

namespace troupe::actors {
namespace {

/// LibTorch has a type of its own for a device's memory that has run out. For the host's there is
/// none: its allocator names itself in the text.
bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr &&
         std::string_view(torch->what_without_backtrace()).find("DefaultCPUAllocator: ") !=
             std::string_view::npos;
}

}  // namespace

bool WorkerTools::retire_after(const std::exception& error) const {
  const auto why = lost_device(error, device);
  if (!why) return false;
  retire(kLostDevice + *why);
  return true;
}

wire::Failure to_failure(const std::exception& error) {
  const auto text = first_line(text_of(error));
  if (is_out_of_memory(error)) return {wire::FailureCode::out_of_memory, text};
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
    return {wire::FailureCode::bad_request, text};
  return {wire::FailureCode::internal, text};
}

}  // namespace troupe::actors
