#pragma once

#include <functional>
#include <map>
#include <string>

#include "tests/tensor/conformance.h"

namespace troupe::testing {

/// One of the processes that share a GPU.
using tensor::testing::Rank;

using Scenarios = std::map<std::string, std::function<void(Rank&)>>;

/// Returns what the processes can be told to do together, by name: the cases of the conformance
/// suite, by their own names, and what is asked of NCCL alone.
const Scenarios& scenarios();

}  // namespace troupe::testing
