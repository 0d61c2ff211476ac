#include "transport/calls/errors.h"

namespace troupe::calls {
namespace {

ErrorCode public_code(wire::FailureCode code) {
  using enum wire::FailureCode;
  switch (code) {
    case timeout:
      return ErrorCode::timeout;
    case lost:
      return ErrorCode::lost;
    case refused:
      return ErrorCode::refused;
    case bad_request:
      return ErrorCode::bad_request;
    case not_found:
      return ErrorCode::not_found;
    case overloaded:
      return ErrorCode::overloaded;
    case cancelled:
      return ErrorCode::cancelled;
    case out_of_memory:
      return ErrorCode::out_of_memory;
    case protocol:
      return ErrorCode::protocol;
    case died:
      return ErrorCode::died;
    case exception:
      return ErrorCode::exception;
    case version_mismatch:
      return ErrorCode::version_mismatch;
    case none:
    case internal:
      break;
  }
  return ErrorCode::failed;
}

}  // namespace

Error to_error(const wire::Failure& failure) {
  return {public_code(failure.code), failure.what, to_string(failure.field)};
}

}  // namespace troupe::calls
