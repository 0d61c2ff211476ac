#include "actors/worker_tools.h"

#include <new>
#include <stdexcept>

#include "actors/device_error.h"
#include "base/error_text.h"

namespace troupe::actors {

bool WorkerTools::retire_after(const std::exception& error) const {
  const auto why = lost_device(error, device);
  if (!why) return false;
  retire(kLostDevice + *why);
  return true;
}

wire::Failure to_failure(const std::exception& error) {
  const auto text = first_line(error.what());
  const bool memory =
      dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      (text.find("alloc") != std::string::npos && text.find("memory") != std::string::npos);
  if (memory) return {wire::FailureCode::out_of_memory, text};
  if (dynamic_cast<const std::invalid_argument*>(&error) != nullptr)
    return {wire::FailureCode::bad_request, text};
  return {wire::FailureCode::internal, text};
}

}  // namespace troupe::actors
