#pragma once
#include <stdexcept>
#include <string>

namespace troupe::plan {

/// Refuses a request or degrees that cannot be: one line naming field, value and reason.
[[noreturn]] inline void refuse(const std::string& why) {
  throw std::invalid_argument("[plan] " + why);
}

}  // namespace troupe::plan
