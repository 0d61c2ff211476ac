#include "kernels/linear.h"

#include <random>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/simd/isa.h"
#include "tests/kernels/errors.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

using troupe::kernels::testing::error;

at::Tensor exact(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  at::Tensor y = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
  return bias.defined() ? y + bias.to(at::kDouble) : y;
}

}  // namespace

TEST_CASE("Linear and its tails agree with float64 at odd sizes and any number of threads") {
  at::manual_seed(11);
  std::mt19937 random(11);
  const int threads = at::get_num_threads();
  for (int round = 0; round < 80; ++round) {
    at::set_num_threads(1 + round % 3);
    const int64_t batch = 1 + random() % 3, rows = 1 + random() % 130;
    const int64_t in = 1 + random() % 200, out = 1 + random() % 300;
    CAPTURE(batch);
    CAPTURE(rows);
    CAPTURE(in);
    CAPTURE(out);
    const at::Tensor x = at::randn({batch, rows, in}), weight = at::randn({out, in});
    const at::Tensor bias = round % 4 ? at::randn({out}) : at::Tensor();
    const kernels::Linear linear(weight, bias);
    const at::Tensor want = exact(x, weight, bias);
    CHECK(error(linear(x), want) < 5e-6);
    CHECK(error(linear.gelu(x), at::gelu(want, "tanh")) < 5e-6);
    const at::Tensor before = at::randn({batch, rows, out}),
                     gate = at::randn({batch, 2 * out}).slice(1, out);
    at::Tensor sum = before.clone();
    linear.add_to(sum, x);
    CHECK(error(sum, before.to(at::kDouble) + want) < 5e-6);
    sum = before.clone();
    linear.add_gated_to(sum, x, gate);
    CHECK(error(sum, before.to(at::kDouble) + gate.to(at::kDouble).unsqueeze(1) * want) < 5e-6);
  }
  at::set_num_threads(threads);
}

TEST_CASE("a weight of rows that stay stored gives the bits of the unpacked one") {
  at::manual_seed(16);
  std::mt19937 random(16);
  for (int round = 0; round < 40; ++round) {
    const int64_t rows = 1 + random() % 130, in = 1 + random() % 200, out = 3 + random() % 300;
    CAPTURE(rows);
    CAPTURE(in);
    CAPTURE(out);
    const at::Tensor stored = at::randint(-127, 128, {out, in}, at::kChar);
    const at::Tensor weight = stored.to(at::kFloat) * 0.03125F;
    const auto values = [](at::ScalarType type) {
      return [type](const at::Tensor& bytes) { return (bytes.to(at::kFloat) * 0.03125F).to(type); };
    };
    const at::Tensor bias = round % 4 ? at::randn({out}) : at::Tensor();
    const auto parts = [&](at::ScalarType type) {
      std::vector<kernels::StoredRows> made;
      const int64_t cut = 1 + random() % (out - 2);
      made.push_back({stored.slice(0, 0, cut).clone(), values(type)});
      made.push_back({stored.slice(0, cut).clone(), values(type)});
      return made;
    };
    const kernels::Linear plain(weight, bias), linear(parts(at::kFloat), in, bias);
    CHECK(linear.bytes() == out * in + (bias.defined() ? 4 * out : 0));
    CHECK(linear.out_features() == out);
    const at::Tensor x = at::randn({2, rows, in}), before = at::randn({2, rows, out});
    const at::Tensor gate = at::randn({2, out});
    const bool exact_bits = kernels::simd::table().beats_library;
    const auto same = [&](const at::Tensor& got, const at::Tensor& want) {
      return exact_bits ? at::equal(got, want) : error(got, want) < 5e-6;
    };
    CHECK(same(linear(x), plain(x)));
    CHECK(same(linear.gelu(x), plain.gelu(x)));
    at::Tensor got = before.clone(), want = before.clone();
    linear.add_to(got, x);
    plain.add_to(want, x);
    CHECK(same(got, want));
    linear.add_gated_to(got, x, gate);
    plain.add_gated_to(want, x, gate);
    CHECK(same(got, want));

    const at::Tensor small_bias = bias.defined() ? bias.to(at::kBFloat16) : bias;
    const kernels::Linear small(parts(at::kBFloat16), in, small_bias);
    CHECK(error(small(x.to(at::kBFloat16)),
                exact(x.to(at::kBFloat16), weight.to(at::kBFloat16), small_bias)) < 2e-2);
  }
  CHECK_THROWS_WITH_AS(kernels::Linear({{at::zeros({3, 4}, at::kByte), {}}}, 4, at::zeros({2})),
                       "[Linear] the bias differs from the stored rows in outputs",
                       std::invalid_argument);
}

TEST_CASE("inputs need not be contiguous and may be empty") {
  at::manual_seed(12);
  const at::Tensor weight = at::randn({33, 20}), wide = at::randn({4, 5, 60});
  const kernels::Linear linear(weight);
  CHECK(error(linear(wide.slice(2, 20, 40)), exact(wide.slice(2, 20, 40), weight, {})) < 5e-6);
  CHECK((linear(at::zeros({0, 20})).sizes() == at::IntArrayRef({0, 33})));
}

TEST_CASE("no rows, no outputs and no inputs are products, too") {
  at::manual_seed(15);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor none = at::zeros({2, 0, 20}, dtype), gate = at::ones({2, 33}, dtype);
    const kernels::Linear linear(at::randn({33, 20}).to(dtype), at::randn({33}).to(dtype));
    at::Tensor residual = at::zeros({2, 0, 33}, dtype);
    CHECK((linear(none).sizes() == at::IntArrayRef({2, 0, 33})));
    CHECK((linear.gelu(none).sizes() == at::IntArrayRef({2, 0, 33})));
    linear.add_to(residual, none);
    linear.add_gated_to(residual, none, gate);
    residual = at::zeros({0, 5, 33}, dtype);
    linear.add_gated_to(residual, at::zeros({0, 5, 20}, dtype), gate.slice(0, 0, 0));

    const kernels::Linear narrow(at::zeros({0, 20}, dtype), at::zeros({0}, dtype));
    const at::Tensor x = at::randn({2, 5, 20}).to(dtype);
    residual = at::zeros({2, 5, 0}, dtype);
    CHECK((narrow(x).sizes() == at::IntArrayRef({2, 5, 0})));
    narrow.add_to(residual, x);
    narrow.add_gated_to(residual, x, gate.slice(1, 0, 0));

    const at::Tensor bias = at::randn({33}).to(dtype), before = at::randn({2, 5, 33}).to(dtype);
    const kernels::Linear thin(at::zeros({33, 0}, dtype), bias);
    CHECK(thin(at::zeros({2, 5, 0}, dtype)).equal(bias.expand({2, 5, 33})));
    residual = before.clone();
    thin.add_gated_to(residual, at::zeros({2, 5, 0}, dtype), gate);
    CHECK(error(residual, before.to(at::kDouble) + bias) < 1e-2);
    const kernels::Linear bare(at::zeros({33, 0}, dtype));
    CHECK(bare(at::zeros({2, 5, 0}, dtype)).equal(at::zeros({2, 5, 33}, dtype)));
  }
}

TEST_CASE("every instruction set multiplies alike") {
  at::manual_seed(13);
  const int64_t rows = 29, in = 70, out = 77;
  const at::Tensor x = at::randn({rows, in}), weight = at::randn({out, in}),
                   bias = at::randn({out});
  int count = 0;
  const kernels::simd::Table* const* tables = kernels::simd::tables(count);
  for (int i = 0; i < count; ++i) {
    const kernels::simd::Table& simd = *tables[i];
    CAPTURE(simd.name);
    const int64_t panels = (out + simd.panel - 1) / simd.panel;
    at::Tensor packed = at::empty({panels, in, simd.panel}), y = at::empty({rows, out});
    simd.pack_weight(weight.data_ptr<float>(), in, out, packed.data_ptr<float>());
    kernels::simd::GemmTask task{};
    task.x = x.data_ptr<float>();
    task.x_stride = in;
    task.packed = packed.data_ptr<float>();
    task.bias = bias.data_ptr<float>();
    task.out = y.data_ptr<float>();
    task.out_stride = out;
    task.depth = in;
    task.columns = out;
    task.row_end = rows;
    task.panel_end = panels;
    simd.gemm(task);
    CHECK(error(y, exact(x, weight, bias)) < 5e-6);
  }
}

TEST_CASE("half precision and wrong shapes") {
  at::manual_seed(14);
  const at::Tensor x = at::randn({2, 9, 24}).to(at::kBFloat16),
                   weight = at::randn({16, 24}).to(at::kBFloat16);
  const kernels::Linear linear(weight);
  CHECK((linear(x).scalar_type() == at::kBFloat16));
  CHECK(error(linear.gelu(x), at::gelu(exact(x, weight, {}), "tanh")) < 2e-2);
  at::Tensor sum = at::zeros({2, 9, 16}, at::kBFloat16);
  linear.add_gated_to(sum, x, at::ones({2, 16}, at::kBFloat16));
  CHECK(error(sum, exact(x, weight, {})) < 2e-2);
  CHECK_THROWS_AS(kernels::Linear(at::zeros({3, 4}), at::zeros({4})), std::invalid_argument);
  CHECK_THROWS_WITH_AS(kernels::Linear(at::zeros({3, 4}))(at::zeros({2, 5})),
                       doctest::Contains("must be 4"), std::invalid_argument);
}
