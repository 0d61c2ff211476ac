#include "tests/gpu/nccl_support.h"

#include <ATen/ATen.h>

#include "tests/gpu/gpu.h"

namespace troupe::testing {

at::Tensor long_work(const Rank& me, int rounds) {
  const std::int64_t width = gpu_is_pretended() ? 64 : 4096;
  at::Tensor x = at::ones({width, width}, at::TensorOptions().device(me.where)).div_(width);
  const at::Tensor y = x.clone();
  for (int i = 0; i < rounds; ++i)
    x = at::matmul(x, y);
  return x.sum();
}

const Scenarios& scenarios() {
  static const Scenarios table = [] {
    Scenarios all = transfer_scenarios();
    all.merge(collective_scenarios());
    all.merge(failure_scenarios());
    for (const auto& of : tensor::testing::conformance_cases())
      all.emplace(of.name, of.body);
    return all;
  }();
  return table;
}

}  // namespace troupe::testing
