#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tests/gpu/nccl_scenarios.h"
#include "transport/tensor/group.h"

namespace troupe::testing {

/// Throws std::runtime_error with `text` unless `condition`.
void require(bool condition, const std::string& text);

/// [count] float32 that tell their place and `seed`.
at::Tensor pattern(const Rank& me, std::int64_t count, int seed);
/// [count], to be received into.
at::Tensor room(const Rank& me, std::int64_t count, at::ScalarType type = at::kFloat);
bool same_bits(const at::Tensor& a, const at::Tensor& b);
/// How `action` fails; throws std::runtime_error where it does not.
tensor::TransferError failure_of(const std::function<void()>& action);
/// Keeps the GPU busy for a while with work that the host does not wait for; a scalar of it.
at::Tensor long_work(const Rank& me, int rounds);

// The parts of `scenarios`.
Scenarios transfer_scenarios();
Scenarios collective_scenarios();
Scenarios failure_scenarios();

}  // namespace troupe::testing
