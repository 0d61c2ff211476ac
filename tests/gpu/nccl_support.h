#pragma once

#include <ATen/core/Tensor.h>

#include "tests/gpu/nccl_scenarios.h"
#include "tests/tensor/ranks.h"

namespace troupe::testing {

using tensor::testing::failure_of;
using tensor::testing::pattern;
using tensor::testing::require;
using tensor::testing::room;
using tensor::testing::same_bits;

/// Keeps the GPU busy for a while with work that the host does not wait for; a scalar of it.
at::Tensor long_work(const Rank& me, int rounds);

// The parts of `scenarios`.
Scenarios transfer_scenarios();
Scenarios collective_scenarios();
Scenarios failure_scenarios();

}  // namespace troupe::testing
