#include "transport/wire/session.h"

namespace troupe::wire {

const char* to_string(FailureCode code) {
  switch (code) {
    case FailureCode::none:
      return "none";
    case FailureCode::timeout:
      return "timeout";
    case FailureCode::lost:
      return "lost";
    case FailureCode::refused:
      return "refused";
    case FailureCode::bad_request:
      return "bad request";
    case FailureCode::not_found:
      return "not found";
    case FailureCode::overloaded:
      return "overloaded";
    case FailureCode::cancelled:
      return "cancelled";
    case FailureCode::out_of_memory:
      return "out of memory";
    case FailureCode::protocol:
      return "protocol";
    case FailureCode::internal:
      return "internal";
    case FailureCode::died:
      return "died";
    case FailureCode::exception:
      return "exception";
    case FailureCode::version_mismatch:
      return "version mismatch";
  }
  return "unknown";
}

}  // namespace troupe::wire
