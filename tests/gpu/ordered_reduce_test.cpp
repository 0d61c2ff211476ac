// Sums and maxima in the order of ranks: the CUDA kernel beside the CPU backends' code, bit by bit.
#include <ATen/ATen.h>

#include <cmath>

#include "tests/gpu/gpu_kernels.h"
#include "transport/tensor/nccl/ordered_reduce.h"
#include "transport/tensor/pair_group.h"

#include "tests/support/doctest.h"

using namespace troupe;
using tensor::ReduceOp;
using tensor::nccl::ReducedType;
using troupe::testing::on_gpu;

namespace {

struct Type {
  at::ScalarType torch;
  ReducedType own;
};
const std::vector<Type> kTypes = {{at::kFloat, ReducedType::kFloat32},
                                  {at::kDouble, ReducedType::kFloat64},
                                  {at::kHalf, ReducedType::kFloat16},
                                  {at::kBFloat16, ReducedType::kBFloat16}};

/// [ranks, count] of sizes so different that every order of a sum gives other bits, with NaN.
at::Tensor parts_of(int ranks, int64_t count, at::ScalarType type) {
  at::Tensor parts = at::randn({ranks, count}) * at::randn({ranks, count}).mul(2).exp();
  if (count > 10) parts.select(0, ranks / 2).slice(0, 3, count, 97).fill_(NAN);
  return parts.to(type);
}

at::Tensor by_twin(const at::Tensor& parts, ReduceOp op) {
  at::Tensor out = at::empty_like(parts[0]);
  std::vector<const void*> rows;
  for (int64_t rank = 0; rank < parts.size(0); ++rank)
    rows.push_back(parts[rank].const_data_ptr());
  tensor::reduce_in_order(out.mutable_data_ptr(), rows, parts.size(1), parts.scalar_type(), op);
  return out;
}

at::Tensor by_library(const at::Tensor& parts, ReduceOp op) {
  const auto wide = parts.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor out = parts[0].to(wide);
  for (int64_t rank = 1; rank < parts.size(0); ++rank) {
    const auto next = parts[rank].to(wide);
    out = op == ReduceOp::sum ? out + next : at::maximum(out, next);
  }
  return out.to(parts.scalar_type());
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(a.isnan(), b.isnan()) && at::equal(a.nan_to_num(0), b.nan_to_num(0));
}

template <typename Check>
void for_each_case(const Check& check) {
  at::manual_seed(31);
  for (const auto& type : kTypes) {
    for (const int ranks : {1, 2, 3, 7}) {
      // The last of them is more than a grid has threads.
      for (const int64_t count : {0, 1, 255, ranks == 7 ? 300'001 : 4'001}) {
        for (const auto op : {ReduceOp::sum, ReduceOp::max}) {
          CAPTURE(ranks);
          CAPTURE(count);
          check(type, parts_of(ranks, count, type.torch), op);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("the CPU's sums and maxima in order are those of ATen, one rank after another") {
  for_each_case([](const Type&, const at::Tensor& parts, ReduceOp op) {
    CHECK(same_bits(by_twin(parts, op), by_library(parts, op)));
  });
}

TEST_CASE("ordered_reduce gives the CPU's bits, also into one of its rows") {
  TROUPE_NEEDS_GPU_KERNELS();
  auto* stream = static_cast<cudaStream_t>(troupe::testing::gpu_stream());
  for_each_case([&](const Type& type, const at::Tensor& parts, ReduceOp op) {
    const at::Tensor want = by_twin(parts, op), there = on_gpu(parts, type.torch);
    const at::Tensor apart = on_gpu(at::zeros_like(parts[0]), type.torch);
    const auto reduce = [&](const at::Tensor& out) {
      return tensor::nccl::ordered_reduce(type.own, op == ReduceOp::max, there.const_data_ptr(),
                                          static_cast<int>(there.size(0)), there.size(1),
                                          out.mutable_data_ptr(), stream);
    };
    REQUIRE(reduce(apart) == cudaSuccess);
    CHECK(same_bits(apart.cpu(), want));
    const at::Tensor own = there[there.size(0) - 1];
    REQUIRE(reduce(own) == cudaSuccess);
    CHECK(same_bits(own.cpu(), want));
  });
}
