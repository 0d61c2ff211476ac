#pragma once
#include <string>

#include "transport/wire/job_field.h"

namespace troupe::plan {

using wire::JobField;

/// A request or degrees that cannot be: one line naming field, value and reason.
[[noreturn]] inline void refuse(wire::JobField field, const std::string& why) {
  throw wire::BadField(field, "[plan] " + why);
}

}  // namespace troupe::plan
