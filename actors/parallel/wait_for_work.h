#pragma once
#include <functional>

#include "transport/tensor/group.h"

namespace troupe::actors {

/// Returns when the operation has succeeded, throws what ended it or that its deadline passed.
using WaitForWork = std::function<void(const tensor::Work&)>;

}  // namespace troupe::actors
