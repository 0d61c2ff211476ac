// Extrapolated K,V, as attention is given them: on the CPU, and by the CUDA kernel.
#include <ATen/ATen.h>

#include <cmath>

#include "kernels/attention.h"
#include "kernels/cuda_calls.h"
#include "tests/gpu/gpu.h"

#include "tests/support/doctest.h"

using namespace troupe;
using kernels::KeyValueRun;

namespace {

const std::vector<at::ScalarType> kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

double bound(at::ScalarType type) {
  return type == at::kFloat ? 1e-5 : type == at::kHalf ? 2e-3 : 1.6e-2;
}

/// Distance in parts of the largest value.
double apart(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor difference = got.cpu().to(at::kDouble) - want;
  return (difference.abs().max() / want.abs().max()).item<double>();
}

/// newest + alpha[:, side] · (newest − older) in float64, of [B, n, H, d].
at::Tensor defined(const at::Tensor& newest, const at::Tensor& older, const at::Tensor& alpha,
                   int side) {
  const at::Tensor x = newest.to(at::kDouble);
  const at::Tensor factor = alpha.select(1, side).to(at::kDouble).view({-1, 1, 1, 1});
  return x + factor * (x - older.to(at::kDouble));
}

/// K and V that attention sees of a run of one row, [B, 1, H, d] each: over one key the softmax is
/// 1, so the output is V, and the log-sum-exp of the i-th unit vector is K's i-th number.
std::pair<at::Tensor, at::Tensor> seen(const KeyValueRun& run) {
  const int64_t batch = run.k.size(0), heads = run.k.size(2), width = run.k.size(3);
  const at::Tensor units = at::eye(width, run.k.options()).view({1, width, 1, width});
  const auto part =
      kernels::attention_part(units.expand({batch, width, heads, width}).contiguous(), {run}, 1.0);
  return {part.log_sum_exp.transpose(1, 2).unsqueeze(1), part.out.slice(1, 0, 1)};
}

void check_seen(at::Device device) {
  at::manual_seed(21);
  for (const auto type : kTypes) {
    for (const int64_t width : {64, 72}) {
      CAPTURE(width);
      // As K,V stores hold them: [n, B, 2, H, d].
      const at::Tensor newest = at::randn({1, 3, 2, 5, width}).to(type),
                       older = at::randn({1, 3, 2, 5, width}).to(type), alpha = at::rand({3, 2});
      const auto side = [](const at::Tensor& t, int i) { return t.select(2, i).transpose(0, 1); };
      const at::Tensor there = newest.to(device), before = older.to(device);
      const auto [k, v] = seen(
          {side(there, 0), side(there, 1), side(before, 0), side(before, 1), alpha.to(device)});
      CHECK(apart(k, defined(side(newest, 0), side(older, 0), alpha, 0)) < bound(type));
      CHECK(apart(v, defined(side(newest, 1), side(older, 1), alpha, 1)) < bound(type));
    }
  }
}

}  // namespace

TEST_CASE("attention on a CPU sees extrapolated K,V as they are defined") {
  check_seen(at::kCPU);
}

TEST_CASE("attention on a GPU sees the same") {
  TROUPE_NEEDS_GPU();
  check_seen(*troupe::testing::gpu());
}

TEST_CASE("extrapolate: rows of any stride into a part of another tensor") {
  TROUPE_NEEDS_GPU();
  at::manual_seed(22);
  const auto device = *troupe::testing::gpu();
  for (const auto type : kTypes) {
    for (const int64_t rows : {0, 1, 37}) {
      for (const int64_t width : {64, 72, 5}) {
        for (const int side : {0, 1}) {
          CAPTURE(rows);
          CAPTURE(width);
          CAPTURE(side);
          const at::Tensor store = at::randn({rows, 3, 2, 5, width}).to(type);
          const at::Tensor older = at::randn({3, rows + 2, 5, width}).to(type);
          const at::Tensor alpha = at::rand({3, 2});
          const auto of = [side](const at::Tensor& t) { return t.select(2, side).transpose(0, 1); };
          const at::Tensor all = at::full({3, rows + 4, 5, width}, 7.0, store.options()).to(device);
          const at::Tensor target = all.slice(1, 3, 3 + rows);
          const auto* cuda = kernels::cuda_kernels_for(target);
          REQUIRE(cuda != nullptr);
          kernels::extrapolate_cuda(*cuda, target, of(store.to(device)),
                                    older.to(device).slice(1, 1, 1 + rows), alpha.to(device), side);
          if (rows > 0)
            CHECK(apart(target, defined(of(store), older.slice(1, 1, 1 + rows), alpha, side)) <
                  bound(type));
          CHECK((all.slice(1, 0, 3) == 7).all().item<bool>());
          CHECK((all.slice(1, 3 + rows) == 7).all().item<bool>());
        }
      }
    }
  }
}
