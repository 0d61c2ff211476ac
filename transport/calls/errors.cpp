#include "transport/calls/errors.h"

#include <algorithm>

namespace troupe::calls {

Error to_error(const wire::Failure& failure) {
  std::string code = wire::to_string(failure.code);
  std::replace(code.begin(), code.end(), ' ', '_');
  if (failure.code == wire::FailureCode::internal || failure.code == wire::FailureCode::none)
    code = "failed";
  return {code, failure.what};
}

}  // namespace troupe::calls
