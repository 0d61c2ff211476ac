// fp8 weights: products on a GPU that has them, beside what the same numbers give in float64.
#include "kernels/quantized.h"

#include <ATen/ATen.h>

#include "kernels/linear.h"
#include "tests/gpu/gpu.h"

#include "tests/support/doctest.h"

using namespace troupe;
using kernels::WeightType;

namespace {

double apart(const at::Tensor& got, const at::Tensor& want) {
  return ((got.cpu().to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>();
}

/// Numbers of e4m3 and what one of them is in each row, as float64.
at::Tensor rounded(const at::Tensor& x) {
  const at::Tensor factor = 448 / x.abs().amax(1, true);
  return (x * factor).clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kDouble) /
         factor.to(at::kDouble);
}

}  // namespace

TEST_CASE("fp8 products are those of numbers of 8 bits, at sizes that 16 does not divide") {
  TROUPE_NEEDS_GPU();
  const at::Device gpu = *troupe::testing::gpu();
  try {
    kernels::require_weight_type(WeightType::fp8, gpu);
  } catch (const std::runtime_error& error) {
    MESSAGE("skipped: " << error.what());
    return;
  }
  at::manual_seed(31);
  const int64_t sizes[][3] = {{64, 128, 256}, {37, 70, 33}, {1, 16, 16}, {300, 1152, 1152}};
  for (const auto& [rows, in, out] : sizes) {
    CAPTURE(rows);
    CAPTURE(in);
    const at::Tensor x = at::randn({1, rows, in}), weight = at::randn({out, in}),
                     bias = at::randn({out}), gate = at::randn({1, out}),
                     before = at::randn({1, rows, out});
    const auto small = kernels::quantize_weight(weight.to(gpu), WeightType::fp8);
    const kernels::Linear linear(small, bias.to(gpu));
    const at::Tensor exact = at::matmul(x[0].to(at::kDouble), weight.to(at::kDouble).t()) + bias;
    const at::Tensor want = at::matmul(rounded(x[0]), rounded(weight).t()) + bias;
    const at::Tensor got = linear(x.to(gpu));
    CHECK(apart(got[0], want) < 2e-3);
    CHECK(apart(got[0], exact) > 1e-3);
    CHECK(apart(got[0], exact) < 0.1);
    at::Tensor sum = before.to(gpu);
    linear.add_gated_to(sum, x.to(gpu), gate.to(gpu));
    CHECK(apart(sum[0], before[0].to(at::kDouble) + gate * want) < 2e-3);
    const kernels::Linear half(small, bias.to(gpu, at::kBFloat16));
    CHECK(apart(half(x.to(gpu, at::kBFloat16))[0], exact) < 0.1);
    // Cut by inputs: the same scales, summed up.
    const int64_t middle = in / 2;
    const at::Tensor on_gpu = x.to(gpu), largest = kernels::largest_of_rows(on_gpu);
    at::Tensor sums = at::zeros({rows, out}, largest.options());
    for (const auto& [begin, end] : {std::pair{int64_t{0}, middle}, {middle, in}}) {
      auto part = small;
      part.values = small.values.slice(1, begin, end).contiguous();
      sums += kernels::Linear(part).sums(on_gpu.slice(2, begin, end), largest);
    }
    at::Tensor together = before.to(gpu);
    linear.add_sums_to(together, sums, largest, gate.to(gpu));
    CHECK(apart(together, sum.cpu().to(at::kDouble)) < 2e-3);
  }
  CHECK_FALSE(kernels::Linear(kernels::quantize_weight(at::ones({16, 16}, gpu), WeightType::fp8))(
                  at::full({1, 16}, std::numeric_limits<float>::quiet_NaN(), gpu))
                  .isfinite()
                  .any()
                  .item<bool>());
}

TEST_CASE("int8 weights are refused on a GPU") {
  TROUPE_NEEDS_GPU();
  CHECK_THROWS_WITH_AS(kernels::require_weight_type(WeightType::int8, *troupe::testing::gpu()),
                       doctest::Contains("int8 is for actors on the CPU"), std::runtime_error);
}
