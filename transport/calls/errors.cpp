#include "transport/calls/errors.h"

namespace troupe::calls {
namespace {

const char* public_code(wire::FailureCode code) {
  using enum wire::FailureCode;
  switch (code) {
    case timeout:
      return "timeout";
    case lost:
      return "lost";
    case refused:
      return "refused";
    case bad_request:
      return "bad_request";
    case not_found:
      return "not_found";
    case overloaded:
      return "overloaded";
    case cancelled:
      return "cancelled";
    case out_of_memory:
      return "out_of_memory";
    case protocol:
      return "protocol";
    case died:
      return "died";
    case exception:
      return "exception";
    case version_mismatch:
      return "version_mismatch";
    case none:
    case internal:
      return "failed";
  }
  return "failed";
}

}  // namespace

Error to_error(const wire::Failure& failure) {
  return {public_code(failure.code), failure.what, to_string(failure.field)};
}

}  // namespace troupe::calls
