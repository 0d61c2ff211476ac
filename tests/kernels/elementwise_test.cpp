#include "kernels/elementwise.h"

#include <random>

#include <ATen/ATen.h>

#include "kernels/simd/isa.h"
#include "tests/kernels/errors.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

using troupe::kernels::testing::error;

at::Tensor modulated(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift) {
  return at::layer_norm(x.to(at::kDouble), {x.size(-1)}, {}, {}, 1e-6) *
             (1 + scale.to(at::kDouble).unsqueeze(1)) +
         shift.to(at::kDouble).unsqueeze(1);
}

}  // namespace

TEST_CASE("norm_modulate and add_gated agree with float64 at odd sizes") {
  at::manual_seed(3);
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    const int64_t batch = 1 + random() % 3, rows = 1 + random() % 70, width = 1 + random() % 200;
    CAPTURE(batch);
    CAPTURE(rows);
    CAPTURE(width);
    const at::Tensor x = at::randn({batch, rows, width}) * 3 + 5;
    const at::Tensor table = at::randn({batch, 6, width});
    const at::Tensor scale = table.select(1, 1), shift = table.select(1, 4);
    if (width > 1)
      CHECK(error(kernels::norm_modulate(x, scale, shift, 1e-6), modulated(x, scale, shift)) <
            1e-5);
    at::Tensor residual = at::randn({batch, rows, width});
    const at::Tensor want =
        residual.to(at::kDouble) + x.to(at::kDouble) * scale.to(at::kDouble).unsqueeze(1);
    kernels::add_gated(residual, x, scale);
    CHECK(error(residual, want) < 1e-6);
  }
}

TEST_CASE("summands with and without gate and bias agree with float64") {
  at::manual_seed(6);
  std::mt19937 random(6);
  for (int round = 0; round < 60; ++round) {
    const auto dtype = round % 3 ? at::kFloat : round % 2 ? at::kBFloat16 : at::kHalf;
    const double bound = round % 3 ? 1e-6 : 2e-2;
    const int64_t batch = 1 + random() % 3, rows = random() % 70, width = 1 + random() % 200;
    CAPTURE(batch);
    CAPTURE(rows);
    CAPTURE(width);
    const at::Tensor wide = at::randn({batch, rows, 2 * width}).to(dtype);
    const at::Tensor y = wide.slice(2, width), bias = at::randn({width}).to(dtype),
                     gate = at::randn({batch, 3, width}).to(dtype).select(1, 1);
    const at::Tensor before = at::randn({batch, rows, width}).to(dtype);
    const auto wider = [](const at::Tensor& x) { return x.to(at::kDouble); };
    const auto check = [&](const at::Tensor& got, const at::Tensor& change) {
      REQUIRE((got.sizes() == before.sizes()));
      if (rows > 0) CHECK(error(got, wider(before) + change) < bound);
    };
    at::Tensor sum = before.clone();
    kernels::add(sum, y);
    check(sum, wider(y));
    sum = before.clone();
    kernels::add(sum, y, bias);
    check(sum, wider(y) + wider(bias));
    sum = before.clone();
    kernels::add_gated(sum, y, gate);
    check(sum, wider(y) * wider(gate).unsqueeze(1));
    sum = before.clone();
    kernels::add_gated(sum, y, gate, bias);
    check(sum, (wider(y) + wider(bias)) * wider(gate).unsqueeze(1));
    sum = before.transpose(0, 1).clone(at::MemoryFormat::Contiguous).transpose(0, 1);
    kernels::add_gated(sum, y, gate, bias);
    check(sum, (wider(y) + wider(bias)) * wider(gate).unsqueeze(1));
    const at::Tensor normal =
        kernels::norm_modulate(wide.slice(1, 0, 0), at::zeros({batch, 2 * width}, dtype),
                               at::zeros({batch, 2 * width}, dtype), 1e-6);
    CHECK((normal.sizes() == at::IntArrayRef({batch, 0, 2 * width})));
  }
  at::Tensor flat = at::ones({4});
  kernels::add(flat, at::ones({4}), at::ones({4}));
  CHECK(flat.equal(at::full({4}, 3.0)));
}

TEST_CASE("tanh-GELU agrees with float64 over its whole range") {
  at::Tensor x = at::cat({at::linspace(-30, 30, 100003), at::linspace(-1e-3, 1e-3, 1001)});
  const at::Tensor exact = at::gelu(x.to(at::kDouble), "tanh");
  at::Tensor y = x.clone();
  kernels::gelu_tanh_(y);
  const at::Tensor error = (y.to(at::kDouble) - exact).abs() / (exact.abs() + 1e-6);
  CHECK(error.max().item<double>() < 3e-6);
  at::Tensor odd = at::tensor({NAN, INFINITY, -INFINITY});
  kernels::gelu_tanh_(odd);
  CHECK(std::isnan(odd[0].item<float>()));
  CHECK(std::isinf(odd[1].item<float>()));
}

TEST_CASE("half precision goes through ATen") {
  at::manual_seed(4);
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor x = at::randn({2, 9, 40}).to(dtype), scale = at::randn({2, 40}).to(dtype);
    const at::Tensor y = kernels::norm_modulate(x, scale, scale, 1e-6);
    CHECK((y.scalar_type() == dtype));
    CHECK(error(y, modulated(x, scale, scale)) < 2e-2);
    at::Tensor residual = x.clone();
    kernels::add_gated(residual, x, scale);
    CHECK(error(residual, x.to(at::kDouble) * (1 + scale.to(at::kDouble).unsqueeze(1))) < 2e-2);
  }
}

TEST_CASE("every instruction set of this CPU gives the same rows") {
  at::manual_seed(5);
  int count = 0;
  const kernels::simd::Table* const* tables = kernels::simd::tables(count);
  REQUIRE(count >= 1);
  const at::Tensor x = at::randn({1, 7, 83}), scale = at::randn({1, 83}),
                   shift = at::randn({1, 83});
  for (int i = 0; i < count; ++i) {
    CAPTURE(tables[i]->name);
    at::Tensor out = at::empty_like(x);
    tables[i]->norm_modulate(x.data_ptr<float>(), 7, 83, scale.data_ptr<float>(),
                             shift.data_ptr<float>(), 1e-6f, out.data_ptr<float>());
    CHECK(error(out, modulated(x, scale, shift)) < 1e-5);
    at::Tensor y = x.clone();
    tables[i]->gelu(y.data_ptr<float>(), y.numel());
    CHECK(error(y, at::gelu(x.to(at::kDouble), "tanh")) < 2e-6);
    y = x.clone();
    tables[i]->add_rows(y.data_ptr<float>(), x.data_ptr<float>(), shift.data_ptr<float>(),
                        scale.data_ptr<float>(), 7, 83);
    CHECK(error(y, x.to(at::kDouble) + (x.to(at::kDouble) + shift) * scale) < 1e-6);
  }
}

TEST_CASE("wrong shapes are refused by name") {
  const at::Tensor x = at::zeros({2, 3, 8});
  CHECK_THROWS_WITH_AS(kernels::norm_modulate(x, at::zeros({2, 7}), at::zeros({2, 8}), 1e-6),
                       doctest::Contains("[norm_modulate] scale has shape [2, 7]"),
                       std::invalid_argument);
  at::Tensor residual = at::zeros({2, 3, 8});
  CHECK_THROWS_AS(kernels::add_gated(residual, at::zeros({2, 4, 8}), at::zeros({2, 8})),
                  std::invalid_argument);
  CHECK_THROWS_WITH_AS(kernels::add(residual, at::zeros({2, 3, 8}), at::zeros({7})),
                       doctest::Contains("bias has [7]"), std::invalid_argument);
}
