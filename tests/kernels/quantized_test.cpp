#include "kernels/quantized.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/linear.h"
#include "kernels/simd/isa.h"
#include "kernels/window_conv.h"
#include "tests/kernels/errors.h"
#include "tests/support/doctest.h"

using namespace troupe;
using kernels::WeightType;

namespace {

/// |q(x)·q(w)ᵀ − x·wᵀ| where each number is half a step off at most: Σ |x| s_w/2 + |w| s_x/2 +
/// s_x s_w/4 over the inputs.
at::Tensor int8_bound(const at::Tensor& x, const at::Tensor& weight) {
  const at::Tensor a = x.to(at::kDouble).abs(), b = weight.to(at::kDouble).abs();
  const at::Tensor sa = a.amax(1, true) / 254, sb = b.amax(1, true) / 254;
  return a.sum(1, true) * sb.t() + sa * b.sum(1, true).t() +
         static_cast<double>(x.size(1)) * sa * sb.t();
}

at::Tensor exact(const at::Tensor& x, const at::Tensor& weight) {
  return at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
}

at::Tensor random_bytes(at::IntArrayRef shape) {
  return at::randint(-127, 128, shape, at::TensorOptions().dtype(at::kChar));
}

using troupe::kernels::testing::error;

}  // namespace

TEST_CASE("products of bytes are exact integers, by the library and in floats") {
  at::manual_seed(21);
  std::mt19937 random(21);
  for (int round = 0; round < 60; ++round) {
    const int64_t rows = 1 + random() % 70, depth = 1 + random() % (round % 2 ? 3000 : 9),
                  out = 1 + random() % 90;
    CAPTURE(rows);
    CAPTURE(depth);
    CAPTURE(out);
    at::Tensor a = random_bytes({rows, depth}), b = random_bytes({out, depth});
    if (round % 3 == 0) {  // the largest sums there are
      a = at::where(a > 0, 127, -127).to(at::kChar);
      b = a.slice(0, 0, 1).expand({out, depth}).contiguous();
    }
    const at::Tensor want = at::matmul(a.to(at::kDouble), b.to(at::kDouble).t()).to(at::kInt);
    CHECK(at::equal(kernels::detail::byte_products(a, b), want));
    CHECK(at::equal(kernels::detail::byte_products_in_floats(a, b), want));
  }
}

TEST_CASE("int8 products lie within half a step of each number, at odd sizes and with any tail") {
  at::manual_seed(22);
  std::mt19937 random(22);
  const int threads = at::get_num_threads();
  double nearest = 0, typical = 0;
  int rounds = 0;
  for (; rounds < 60; ++rounds) {
    at::set_num_threads(1 + rounds % 3);
    const int64_t batch = 1 + random() % 3, rows = 1 + random() % 60;
    const int64_t in = 1 + random() % 300, out = 1 + random() % 300;
    CAPTURE(in);
    CAPTURE(out);
    const at::Tensor x = at::randn({batch, rows, in}) * std::pow(10.0, int(random() % 9) - 4);
    const at::Tensor weight = at::randn({out, in});
    const at::Tensor bias = rounds % 4 ? at::randn({out}) : at::Tensor();
    const kernels::Linear linear(kernels::quantize_weight(weight, WeightType::int8), bias);
    const at::Tensor flat = x.view({-1, in});
    at::Tensor want = exact(flat, weight);
    const at::Tensor bound = int8_bound(flat, weight) * 1.0001 + want.abs() * 1e-6 + 1e-30;
    const at::Tensor got = linear(x);
    const at::Tensor plain =
        bias.defined() ? got.to(at::kDouble) - bias.to(at::kDouble) : got.to(at::kDouble);
    const at::Tensor slack = bias.defined() ? bound + 1e-6 : bound;
    const at::Tensor off = (plain.view({-1, out}) - want).abs();
    CHECK((off <= slack).all().item<bool>());
    nearest = std::max(nearest, (off / slack).max().item<double>());
    typical += error(plain.view({-1, out}), want) / 60;

    // The tails are what floats would make of the same sums.
    const at::Tensor y = got.to(at::kDouble);
    CHECK(error(linear.gelu(x), at::gelu(y, "tanh")) < 5e-6);
    const at::Tensor before = at::randn({batch, rows, out}), gate = at::randn({batch, out});
    at::Tensor sum = before.clone();
    linear.add_to(sum, x);
    CHECK(error(sum, before + y) < 5e-6);
    sum = before.clone();
    linear.add_gated_to(sum, x, gate);
    CHECK(error(sum, before + gate.unsqueeze(1) * y) < 5e-6);
    sum = at::cat({before, before}, 2).slice(2, out);  // not contiguous
    linear.add_gated_to(sum, x, gate);
    CHECK(error(sum, before + gate.unsqueeze(1) * y) < 5e-6);
  }
  at::set_num_threads(threads);
  CHECK(nearest > 0.02);  // it is quantized at all
  MESSAGE("bytes by " << std::string(kernels::has_byte_products() ? "VNNI" : "floats")
                      << ", at most " << nearest << " of the bound, on average " << typical
                      << " of the largest");
}

TEST_CASE("an int8 product cut by inputs or outputs has the bits of the whole") {
  at::manual_seed(23);
  const int64_t rows = 37, in = 203, out = 75;
  const at::Tensor x = at::randn({1, rows, in}), weight = at::randn({out, in}),
                   bias = at::randn({out}), gate = at::randn({1, out}),
                   before = at::randn({1, rows, out});
  const auto whole = kernels::quantize_weight(weight, WeightType::int8);
  const kernels::Linear linear(whole, bias);
  at::Tensor want = before.clone();
  linear.add_gated_to(want, x, gate);
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{0, 100, 203}, {0, 1, 2, 203}, {0, 203, 203}}) {
    at::Tensor largest = at::zeros({rows}), sums = at::zeros({rows, out});
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i)
      largest = at::maximum(largest, kernels::largest_of_rows(x.slice(2, cuts[i], cuts[i + 1])));
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      auto part = whole;
      part.values = part.values.slice(1, cuts[i], cuts[i + 1]).contiguous();
      sums += kernels::Linear(part, bias).sums(x.slice(2, cuts[i], cuts[i + 1]), largest);
    }
    at::Tensor got = before.clone();
    linear.add_sums_to(got, sums, largest, gate);
    CAPTURE(cuts.at(1));
    CAPTURE((got - want).abs().max().item<double>());
    CHECK(at::equal(got, want));
  }
  auto upper = whole;
  upper.values = whole.values.slice(0, 0, 40);
  upper.scales = whole.scales.slice(0, 0, 40);
  CHECK(at::equal(kernels::Linear(upper, bias.slice(0, 0, 40))(x), linear(x).slice(2, 0, 40)));
}

TEST_CASE("what is not finite stays so, zeros give the bias") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  at::manual_seed(24);
  const at::Tensor weight = at::randn({33, 70}), bias = at::randn({33});
  const kernels::Linear linear(kernels::quantize_weight(weight, WeightType::int8), bias);
  for (const float bad : {nan, infinity, -infinity}) {
    for (const int64_t place : {0, 17, 69}) {
      at::Tensor x = at::randn({3, 70});
      x[1][place] = bad;
      const at::Tensor y = linear(x);
      CHECK_FALSE(y[1].isfinite().any().item<bool>());
      CHECK(y[0].isfinite().all().item<bool>());
      CHECK(y[2].isfinite().all().item<bool>());
      // A shard that is finite itself may have set the row's largest magnitude.
      CHECK_FALSE(linear.sums(x, at::ones({3}))[1].isfinite().any().item<bool>());
    }
  }
  at::Tensor x = at::zeros({2, 70});
  CHECK(at::equal(linear(x), bias.expand({2, 33})));
  x.fill_(1e-42);
  CHECK(at::equal(linear(x), bias.expand({2, 33})));
  CHECK((linear(at::zeros({0, 70})).sizes() == at::IntArrayRef({0, 33})));
  const kernels::Linear none(kernels::quantize_weight(at::zeros({33, 0}), WeightType::int8), bias);
  CHECK(at::equal(none(at::zeros({2, 0})), bias.expand({2, 33})));
  const kernels::Linear dead(kernels::quantize_weight(at::zeros({33, 70}), WeightType::int8));
  CHECK(at::equal(dead(at::randn({2, 70})), at::zeros({2, 33})));
}

TEST_CASE("every instruction set quantizes alike") {
  at::manual_seed(25);
  const int64_t rows = 19, width = 77;
  const at::Tensor x = at::randn({rows, width});
  const at::Tensor most = x.abs().amax(1);
  const at::Tensor want =
      (x.to(at::kDouble) * (127 / most).to(at::kDouble).unsqueeze(1)).round().to(at::kChar);
  int count = 0;
  const kernels::simd::Table* const* tables = kernels::simd::tables(count);
  for (int i = 0; i < count; ++i) {
    CAPTURE(tables[i]->name);
    at::Tensor largest = at::empty({rows}), bytes = at::empty({rows, width}, at::kChar);
    tables[i]->largest_of_rows(x.data_ptr<float>(), rows, width, largest.data_ptr<float>());
    CHECK(at::equal(largest, most));
    tables[i]->quantize_rows(x.data_ptr<float>(), rows, width, largest.data_ptr<float>(),
                             bytes.data_ptr<int8_t>());
    CHECK(at::equal(bytes, want));
  }
}

TEST_CASE("weights take a quarter, and in half precision the products stay") {
  at::manual_seed(26);
  const at::Tensor weight = at::randn({512, 256}), x = at::randn({2, 9, 256});
  const kernels::Linear linear(kernels::quantize_weight(weight, WeightType::int8));
  CHECK(linear.bytes() == 512 * 256 + 4 * 512);
  const at::Tensor want = linear(x);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor y = linear(x.to(type));
    CHECK((y.scalar_type() == type));
    CHECK(error(y, want.to(at::kDouble)) < 2e-2);
  }
}

TEST_CASE("fp8 weights and rows lie within half a step, and need a GPU") {
  at::manual_seed(27);
  const at::Tensor weight = at::randn({33, 70});
  const auto small = kernels::quantize_weight(weight, WeightType::fp8);
  CHECK((small.values.scalar_type() == at::kFloat8_e4m3fn));
  const at::Tensor back = small.values.to(at::kFloat) * small.scales.unsqueeze(1);
  // Three bits of mantissa: 1/16 of the value, or half of the smallest step, 2^-9.
  const at::Tensor allowed =
      at::maximum(weight.abs() / 16, small.scales.unsqueeze(1) * std::pow(2.0, -10)) * 1.0001;
  CHECK(((back - weight).abs() <= allowed).all().item<bool>());
  CHECK((back - weight).abs().max().item<double>() > 0.01);
  CHECK_THROWS_WITH_AS(kernels::require_weight_type(WeightType::fp8, at::kCPU),
                       doctest::Contains("fp8 needs a GPU of compute capability 8.9"),
                       std::runtime_error);
  CHECK_THROWS_WITH_AS(kernels::require_weight_type(WeightType::int8, at::Device("cuda:0")),
                       doctest::Contains("int8 is for actors on the CPU"), std::runtime_error);
  CHECK_NOTHROW(kernels::require_weight_type(WeightType::int8, at::kCPU));
}

TEST_CASE("fp8 sums and what they stand for, in LibTorch's form for the CPU") {
  at::manual_seed(28);
  const auto rounded = [](const at::Tensor& x) {
    const at::Tensor factor = 448 / x.abs().amax(1, true);
    return (x * factor).clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kDouble) /
           factor.to(at::kDouble);
  };
  const int64_t sizes[][3] = {{37, 70, 33}, {1, 16, 16}, {5, 1, 3}, {20, 48, 64}};
  for (const auto& [rows, in, out] : sizes) {
    CAPTURE(in);
    const at::Tensor x = at::randn({rows, in}), weight = at::randn({out, in}),
                     bias = at::randn({out});
    const kernels::Linear linear(kernels::quantize_weight(weight, WeightType::fp8), bias);
    const at::Tensor want = at::matmul(rounded(x), rounded(weight).t()) + bias;
    // The weight is divided by its scale, not multiplied by its inverse: a step apart here and
    // there.
    CHECK(error(linear(x), want) < 1e-2);
    CHECK(error(linear(x), want) < error(linear(x), exact(x, weight) + bias) + 1e-6);
    CHECK(error(linear.gelu(x), at::gelu(want, "tanh")) < 1e-2);
  }
}

TEST_CASE("an int8 convolution is the product of its windows, whichever rows are computed") {
  at::manual_seed(27);
  std::mt19937 random(27);
  for (int round = 0; round < 30; ++round) {
    const int64_t batch = 1 + random() % 2, in = 1 + random() % 40, out = 1 + random() % 50;
    const int64_t height = 5 + random() % 12, width = 1 + random() % 14, stride = 1 + random() % 2;
    CAPTURE(in);
    CAPTURE(out);
    CAPTURE(height);
    CAPTURE(width);
    CAPTURE(stride);
    const at::Tensor x = at::randn({batch, in, height, width});
    const at::Tensor weight = at::randn({out, in, 3, 3});
    const at::Tensor bias = round % 3 ? at::randn({out}) : at::Tensor();
    const kernels::WindowConv conv(weight, bias, WeightType::int8);
    const at::Tensor got = conv(x, stride);
    const auto windows = [&](const at::Tensor& of) {
      const at::Tensor columns = at::im2col(of, {3, 3}, {1, 1}, {0, 1}, {stride, stride});
      return columns.view({batch, in, 9, -1}).permute({0, 3, 2, 1}).reshape({-1, 9 * in});
    };
    const at::Tensor rows = weight.permute({0, 2, 3, 1}).reshape({out, -1});
    const kernels::Linear product(kernels::quantize_weight(rows, WeightType::int8), bias);
    CHECK(at::equal(got.permute({0, 2, 3, 1}).reshape({-1, out}), product(windows(x))));
    const at::Tensor want =
        at::conv2d(x.to(at::kDouble), weight.to(at::kDouble),
                   bias.defined() ? std::optional<at::Tensor>(bias.to(at::kDouble)) : std::nullopt,
                   at::IntArrayRef{stride, stride}, at::IntArrayRef{0, 1});
    REQUIRE(got.sizes() == want.sizes());
    const at::Tensor away = (got.to(at::kDouble) - want).permute({0, 2, 3, 1}).reshape({-1, out});
    CHECK((away.abs() <= int8_bound(windows(x), rows) * 1.001 + 1e-4).all().item<bool>());
    CHECK(at::equal(conv(x.slice(2, stride), stride), got.slice(2, 1)));
    CHECK(conv.bytes() == out * (9 * in + 4) + (bias.defined() ? 4 * out : 0));

    const at::Tensor half = conv(x.to(at::kBFloat16), stride);
    CHECK((half.scalar_type() == at::kBFloat16));
    CHECK(error(half, got) < 2e-2);
    at::Tensor broken = x.clone();
    broken[0][0][2][0] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor poisoned = conv(broken, stride);
    CHECK(at::equal(
        poisoned.isnan(),
        at::conv2d(broken, weight, bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt,
                   at::IntArrayRef{stride, stride}, at::IntArrayRef{0, 1})
            .isnan()));
  }
  CHECK_THROWS_AS(
      kernels::WindowConv(at::ones({4, 3, 3, 3}), {}, WeightType::int8)(at::ones({1, 2, 5, 5}), 1),
      std::invalid_argument);
}
