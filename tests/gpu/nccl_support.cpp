#include "tests/gpu/nccl_support.h"

#include <ATen/ATen.h>

namespace troupe::testing {

at::Tensor long_work(const Rank& me, int rounds) {
  at::Tensor x = at::ones({4096, 4096}, at::TensorOptions().device(me.where)).mul_(1.0f / 4096);
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
