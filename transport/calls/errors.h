#pragma once
#include "transport/wire/session.h"
#include "troupe/result.h"

namespace troupe::calls {

/// A failure that came over the wire, or of the link, as the public API names it.
Error to_error(const wire::Failure& failure);

}  // namespace troupe::calls
