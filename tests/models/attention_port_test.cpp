#include <ATen/ATen.h>

#include <cmath>
#include <random>

#include "models/dit/local_attention.h"
#include "models/dit/stale_kv_attention.h"
#include "tests/support/doctest.h"

using namespace troupe::models;

namespace {

at::Tensor exact(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto heads = [](const at::Tensor& x) { return x.to(at::kDouble).transpose(1, 2); };
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = at::matmul(heads(q), heads(k).transpose(-1, -2)) * scale;
  return at::matmul(scores.softmax(-1), heads(v)).transpose(1, 2);
}

double error(const at::Tensor& got, const at::Tensor& want) {
  return ((got.to(at::kDouble) - want).abs().max() / want.abs().max()).item<double>();
}

struct Qkv {
  at::Tensor q, k, v;
};

Qkv random_qkv(int64_t batch, int64_t tokens, int64_t heads, int64_t dim) {
  const at::Tensor qkv = at::randn({batch, tokens, 3, heads, dim});
  return {qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2)};
}

}  // namespace

TEST_CASE("patches see fresh keys up to themselves and the previous step's behind") {
  at::manual_seed(31);
  std::mt19937 random(31);
  for (int round = 0; round < 12; ++round) {
    const int64_t batch = 1 + random() % 2, tokens = 5 + random() % 60, heads = 1 + random() % 3;
    const int64_t dim = 4 + random() % 20, patches = 1 + random() % 5;
    StaleKvAttention port({{2, 4}, batch, tokens, heads, dim}, at::kFloat, at::kCPU);
    const bool warm = round % 2;
    // An oracle that holds every row of both blocks; NaN marks rows that were never computed.
    at::Tensor keys = at::full({2, batch, tokens, heads, dim}, NAN), values = keys.clone();
    int64_t reached = 0;
    for (int step = 0; step < 3; ++step) {
      const int64_t parts = warm && step == 0 ? 1 : patches;
      for (int64_t m = 0; m < parts; ++m) {
        const int64_t begin = m * tokens / parts, end = (m + 1) * tokens / parts;
        port.begin(begin, end);
        reached = std::max(reached, end);
        for (int block = 2; block < 4; ++block) {
          const Qkv x = random_qkv(batch, end - begin, heads, dim);
          keys[block - 2].slice(1, begin, end).copy_(x.k);
          values[block - 2].slice(1, begin, end).copy_(x.v);
          const at::Tensor want = exact(x.q, keys[block - 2].slice(1, 0, reached),
                                        values[block - 2].slice(1, 0, reached));
          CHECK(error(port.attend(block, x.q, x.k, x.v), want) < 1e-5);
          CHECK(port.written(block) == reached);
        }
      }
    }
  }
}

TEST_CASE("one call with all tokens equals local attention") {
  at::manual_seed(32);
  const Qkv x = random_qkv(2, 37, 3, 16);
  StaleKvAttention port({{0, 1}, 2, 37, 3, 16}, at::kFloat, at::kCPU);
  port.begin(0, 37);
  LocalAttention local;
  CHECK(at::equal(port.attend(0, x.q, x.k, x.v), local.attend(0, x.q, x.k, x.v)));
  CHECK(port.bytes() == 2 * 2 * 37 * 3 * 16 * 4);
  port.reset();
  CHECK(port.written(0) == 0);
}

TEST_CASE("half precision caches") {
  at::manual_seed(33);
  Qkv x = random_qkv(1, 20, 2, 16);
  for (at::Tensor* t : {&x.q, &x.k, &x.v})
    *t = t->to(at::kBFloat16);
  StaleKvAttention port({{0, 1}, 1, 20, 2, 16}, at::kBFloat16, at::kCPU);
  port.begin(0, 20);
  CHECK(error(port.attend(0, x.q, x.k, x.v), exact(x.q, x.k, x.v)) < 2e-2);
}

TEST_CASE("gaps, foreign blocks and wrong shapes are refused") {
  StaleKvAttention port({{1, 3}, 1, 10, 2, 4}, at::kFloat, at::kCPU);
  CHECK_THROWS_WITH_AS(port.begin(4, 8), doctest::Contains("0 have been written"),
                       std::invalid_argument);
  CHECK_THROWS_AS(port.begin(0, 11), std::invalid_argument);
  CHECK_THROWS_AS(port.begin(0, 0), std::invalid_argument);
  port.begin(0, 4);
  const Qkv x = random_qkv(1, 4, 2, 4), longer = random_qkv(1, 5, 2, 4);
  CHECK_THROWS_WITH_AS(port.attend(0, x.q, x.k, x.v), doctest::Contains("block 0"),
                       std::invalid_argument);
  CHECK_THROWS_AS(port.attend(1, longer.q, longer.k, longer.v), std::invalid_argument);
  port.attend(1, x.q, x.k, x.v);
  CHECK_THROWS_AS(port.begin(4, 8), std::invalid_argument);  // block 2 has not come so far
  port.attend(2, x.q, x.k, x.v);
  CHECK_NOTHROW(port.begin(4, 8));
  CHECK_THROWS_AS(StaleKvAttention({{0, 1}, 0, 10, 2, 4}, at::kFloat, at::kCPU),
                  std::invalid_argument);
}
