#include "kernels/attention.h"

#include <random>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/simd/isa.h"
#include "tests/kernels/errors.h"
#include "tests/support/doctest.h"

using namespace troupe;

namespace {

at::Tensor exact(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                 const at::Tensor& bias) {
  const auto heads = [](const at::Tensor& x) { return x.to(at::kDouble).transpose(1, 2); };
  at::Tensor scores = at::matmul(heads(q), heads(k).transpose(-1, -2)) * scale;
  if (bias.defined()) scores = scores + bias.to(at::kDouble).unsqueeze(1).unsqueeze(1);
  return at::matmul(scores.softmax(-1), heads(v)).transpose(1, 2);
}

using troupe::kernels::testing::error;

}  // namespace

TEST_CASE("attention agrees with float64 at odd sizes, strides, biases and threads") {
  at::manual_seed(21);
  std::mt19937 random(21);
  const int threads = at::get_num_threads();
  for (int round = 0; round < 80; ++round) {
    at::set_num_threads(1 + round % 3);
    const int64_t batch = 1 + random() % 2, heads = 1 + random() % 5, width = 1 + random() % 100;
    const int64_t queries = 1 + random() % 150, keys = 1 + random() % (round % 8 ? 200 : 1300);
    CAPTURE(batch);
    CAPTURE(heads);
    CAPTURE(width);
    CAPTURE(queries);
    CAPTURE(keys);
    const at::Tensor qkv = at::randn({batch, std::max(queries, keys), 3, heads, width}) * 2;
    const at::Tensor q = qkv.select(2, 0).slice(1, 0, queries);
    const at::Tensor k = qkv.select(2, 1).slice(1, 0, keys), v = qkv.select(2, 2).slice(1, 0, keys);
    const double scale = 1 / std::sqrt(static_cast<double>(width));
    CHECK(error(kernels::attention(q, k, v, scale), exact(q, k, v, scale, {})) < 1e-5);
    at::Tensor bias = at::randn({batch, keys});
    bias.masked_fill_(at::rand({batch, keys}) < 0.3, -10000.0);
    CHECK(error(kernels::attention(q, k, v, scale, bias), exact(q, k, v, scale, bias)) < 1e-5);
  }
  at::set_num_threads(threads);
}

TEST_CASE("large scores neither overflow nor lose the running maximum") {
  at::manual_seed(22);
  const at::Tensor q = at::randn({1, 40, 2, 16}) * 30, k = at::randn({1, 1500, 2, 16}) * 30,
                   v = at::randn({1, 1500, 2, 16});
  CHECK(error(kernels::attention(q, k, v, 0.25), exact(q, k, v, 0.25, {})) < 1e-4);
  const at::Tensor rising =
      at::linspace(0, 80, 1500).view({1, 1500, 1, 1}).expand({1, 1500, 2, 16}).contiguous();
  const at::Tensor ones = at::ones({1, 40, 2, 16});
  CHECK(error(kernels::attention(ones, rising, v, 0.25), exact(ones, rising, v, 0.25, {})) < 2e-4);
}

TEST_CASE("keys masked with minus infinity are absent; NaN stays visible") {
  at::manual_seed(23);
  const at::Tensor q = at::randn({1, 9, 2, 24}), k = at::randn({1, 50, 2, 24});
  at::Tensor v = at::randn({1, 50, 2, 24});
  at::Tensor bias = at::zeros({1, 50});
  bias.slice(1, 31).fill_(-INFINITY);
  const at::Tensor want = exact(q, k.slice(1, 0, 31), v.slice(1, 0, 31), 0.2, {});
  CHECK(error(kernels::attention(q, k, v, 0.2, bias), want) < 1e-5);
  at::Tensor bad = q.clone();
  bad[0][3][1][5] = NAN;
  const at::Tensor out = kernels::attention(bad, k, v, 0.2);
  CHECK(out[0][3][1].isnan().all().item<bool>());
  CHECK_FALSE(out[0][4].isnan().any().item<bool>());
}

TEST_CASE("half precision and wrong shapes") {
  at::manual_seed(24);
  const at::Tensor q = at::randn({2, 17, 3, 32}).to(at::kBFloat16),
                   k = at::randn({2, 29, 3, 32}).to(at::kBFloat16);
  const at::Tensor out = kernels::attention(q, k, k, 0.2);
  CHECK((out.scalar_type() == at::kBFloat16));
  CHECK(out.is_contiguous());
  CHECK(error(out, exact(q, k, k, 0.2, {})) < 2e-2);
  CHECK_THROWS_WITH_AS(kernels::attention(q, k, k.slice(1, 1), 0.2),
                       doctest::Contains("[attention] q [2, 17, 3, 32]"), std::invalid_argument);
}

TEST_CASE("every instruction set attends alike") {
  at::manual_seed(25);
  const int64_t queries = 53, keys = 701, width = 40;
  const at::Tensor q = at::randn({1, queries, 1, width}), k = at::randn({1, keys, 1, width}),
                   v = at::randn({1, keys, 1, width});
  int count = 0;
  const kernels::simd::Table* const* tables = kernels::simd::tables(count);
  for (int i = 0; i < count; ++i) {
    const kernels::simd::Table& simd = *tables[i];
    CAPTURE(simd.name);
    at::Tensor packed_keys = at::empty({simd.packed_keys_size(keys, width)});
    at::Tensor packed_values = at::empty({simd.packed_values_size(keys, width)});
    at::Tensor scratch = at::empty({simd.attention_scratch(width)}),
               out = at::empty({1, queries, 1, width});
    const kernels::simd::RowRun key_run{k.data_ptr<float>(), nullptr, width, 0, keys, 0},
        value_run{v.data_ptr<float>(), nullptr, width, 0, keys, 0};
    simd.pack_keys(&key_run, 1, width, packed_keys.data_ptr<float>());
    simd.pack_values(&value_run, 1, width, packed_values.data_ptr<float>());
    kernels::simd::AttentionTask task{};
    task.q = q.data_ptr<float>();
    task.q_stride = width;
    task.keys = packed_keys.data_ptr<float>();
    task.values = packed_values.data_ptr<float>();
    task.out = out.data_ptr<float>();
    task.out_stride = width;
    task.queries = queries;
    task.key_count = keys;
    task.width = width;
    task.scale = 0.2f;
    task.scratch = scratch.data_ptr<float>();
    simd.attention(task);
    CHECK(error(out, exact(q, k, v, 0.2, {})) < 1e-5);
  }
}
