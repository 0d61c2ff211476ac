#include "kernels/graph_cache.h"

#include <ATen/ATen.h>

#include "tests/gpu/gpu.h"

#include "tests/support/doctest.h"

using namespace troupe;
using kernels::GraphCache;

namespace {

/// Adds the number of its real calls to nothing but `calls`: what a replay does not do.
GraphCache::Body body(const at::Tensor& weight, int& calls) {
  return [&weight, &calls](const GraphCache::Tensors& in) {
    ++calls;
    const at::Tensor hidden = at::matmul(in[0], weight).relu_();
    return GraphCache::Tensors{hidden * in[1], hidden.sum(0)};
  };
}

}  // namespace

TEST_CASE("without a GPU the body simply runs") {
  GraphCache cache;
  const at::Tensor weight = at::randn({8, 8}), x = at::randn({3, 8}), factor = at::ones({1});
  int calls = 0;
  for (int i = 1; i <= 3; ++i) {
    CHECK(at::equal(cache.run("a", {x, factor}, body(weight, calls))[0],
                    at::matmul(x, weight).relu_()));
    CHECK(calls == i);
  }
  CHECK(cache.recordings() == 0);
}

TEST_CASE("a recording reads new inputs from device memory and hands out outputs of its own") {
  TROUPE_NEEDS_GPU();
  REQUIRE_MESSAGE(GraphCache::why_plain().empty(), GraphCache::why_plain());
  at::manual_seed(1);
  const auto there = at::TensorOptions().device(*testing::gpu());
  const at::Tensor weight = at::randn({64, 64}, there);
  GraphCache cache;
  int calls = 0, plain_calls = 0;
  at::Tensor kept, kept_copy;
  for (int i = 0; i < 6; ++i) {
    const at::Tensor x = at::randn({32, 64}, there), factor = at::full({1}, i + 1.0f, there);
    const auto got = cache.run("step", {x, factor}, body(weight, calls));
    const auto want = body(weight, plain_calls)({x, factor});
    CHECK(at::allclose(got[0], want[0], 1e-5, 1e-5));
    CHECK(at::allclose(got[1], want[1], 1e-5, 1e-4));
    if (i == 3) {
      kept = got[0];
      kept_copy = got[0].clone();
    }
  }
  CHECK(calls == 2);
  CHECK(at::equal(kept, kept_copy));
  CHECK(cache.recordings() == 1);

  // Another shape is another recording; K,V-like state that the body changes goes on from replay to
  // replay.
  const at::Tensor state = at::zeros({4}, there);
  for (int i = 1; i <= 5; ++i) {
    cache.run("state", {at::ones({4}, there)}, [&](const GraphCache::Tensors& in) {
      state.add_(in[0]);
      return GraphCache::Tensors{};
    });
    CHECK(state[3].item<float>() == static_cast<float>(i));
  }
  CHECK(cache.recordings() == 2);
  cache.clear();
  CHECK(cache.recordings() == 0);
}

TEST_CASE("what cannot be recorded says so, and the stream is usable afterwards") {
  TROUPE_NEEDS_GPU();
  GraphCache cache;
  const at::Tensor x = at::ones({4}, at::TensorOptions().device(*testing::gpu()));
  const GraphCache::Body waits = [](const GraphCache::Tensors& in) {
    return GraphCache::Tensors{in[0] * in[0].sum().item<float>()};
  };
  CHECK(cache.run("waits", {x}, waits)[0][0].item<float>() == 4);
  CHECK_THROWS_AS(cache.run("waits", {x}, waits), std::runtime_error);
  CHECK((x + 1)[0].item<float>() == 2);
  CHECK(cache.run("waits", {x}, waits)[0][0].item<float>() == 4);
}
