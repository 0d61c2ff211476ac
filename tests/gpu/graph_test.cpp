#include "kernels/graph_cache.h"

#include <ATen/ATen.h>

#include "tests/gpu/recording_device.h"

#include "tests/support/doctest.h"

using namespace troupe;
using kernels::GraphCache;

namespace {

/// Adds the number of its real calls to nothing but `calls`: what a replay does not do.
GraphCache::Body body(const at::Tensor& weight, int& calls) {
  return [&weight, &calls](const GraphCache::Tensors& in) {
    ++calls;
    const at::Tensor hidden = at::matmul(in[0], weight).relu_();
    return GraphCache::Made{{hidden * in[1], hidden.sum(0)}, calls};
  };
}

at::TensorOptions there() {
  return at::TensorOptions().device(*testing::recording_device());
}

}  // namespace

#ifndef TROUPE_GRAPH_STAND_IN
TEST_CASE("on a CPU the body simply runs") {
  CHECK(!GraphCache::why_plain(at::kCPU).empty());
  GraphCache cache;
  const at::Tensor weight = at::randn({8, 8}), x = at::randn({3, 8}), factor = at::ones({1});
  int calls = 0;
  for (int i = 1; i <= 3; ++i) {
    CHECK(at::equal(cache.run("a", {x, factor}, body(weight, calls)).tensors[0],
                    at::matmul(x, weight).relu_()));
    CHECK(calls == i);
  }
  CHECK(cache.recordings() == 0);
}
#endif

TEST_CASE("a recording reads new inputs from device memory and hands out outputs of its own") {
  TROUPE_NEEDS_RECORDER();
  REQUIRE_MESSAGE(GraphCache::why_plain(*testing::recording_device()).empty(),
                  GraphCache::why_plain(*testing::recording_device()));
  at::manual_seed(1);
  const at::Tensor weight = at::randn({64, 64}, there());
  GraphCache cache;
  int calls = 0, plain_calls = 0;
  at::Tensor kept, kept_copy;
  for (int i = 0; i < 6; ++i) {
    const at::Tensor x = at::randn({32, 64}, there()), factor = at::full({1}, i + 1.0f, there());
    const auto got = cache.run("step", {x, factor}, body(weight, calls));
    const auto want = body(weight, plain_calls)({x, factor});
    CHECK(at::allclose(got.tensors[0], want.tensors[0], 1e-5, 1e-5));
    CHECK(at::allclose(got.tensors[1], want.tensors[1], 1e-5, 1e-4));
    CHECK(std::any_cast<int>(got.host) == std::min(i + 1, 2));  // as the recorded call left it
    if (i == 3) {
      kept = got.tensors[0];
      kept_copy = got.tensors[0].clone();
    }
  }
  CHECK(calls == 2);
  CHECK(at::equal(kept, kept_copy));
  CHECK(cache.recordings() == 1);
  CHECK(cache.counts().recorded == 1);
  CHECK(cache.counts().replayed == 5);

  // Another shape is another recording; K,V-like state that the body changes goes on from replay to
  // replay, and being recorded does not change it.
  const at::Tensor state = at::zeros({4}, there());
  for (int i = 1; i <= 5; ++i) {
    cache.run("state", {at::ones({4}, there())}, [&](const GraphCache::Tensors& in) {
      state.add_(in[0]);
      return GraphCache::Made{};
    });
    CHECK(state[3].item<float>() == static_cast<float>(i));
  }
  CHECK(cache.recordings() == 2);
  cache.clear();
  CHECK(cache.recordings() == 0);
  CHECK(cache.counts().recorded == 2);
}

TEST_CASE("a recording goes on where memory was when it was recorded") {
  TROUPE_NEEDS_RECORDER();
  GraphCache cache;
  at::Tensor state = at::ones({4}, there());
  const at::Tensor first = state;
  const auto run = [&] {
    return cache.run("moved", {at::ones({4}, there())}, [&](const GraphCache::Tensors& in) {
      return GraphCache::Made{{state.add_(in[0])}};
    });
  };
  run();
  CHECK(run().tensors[0][0].item<float>() == 3);
  state = at::full({4}, 100.0f, there());  // what no caller may do
  CHECK(run().tensors[0][0].item<float>() == 4);
  CHECK(first[0].item<float>() == 4);
  CHECK(state[0].item<float>() == 100);
}

TEST_CASE("the recording that was not used for longest goes") {
  TROUPE_NEEDS_RECORDER();
  GraphCache cache(2);
  int calls = 0;
  const at::Tensor weight = at::ones({4, 4}, there()), x = at::ones({2, 4}, there());
  const auto run = [&](const char* key) { cache.run(key, {x, x[0]}, body(weight, calls)); };
  for (const char* key : {"a", "a", "b", "b", "a", "c"})
    run(key);  // c takes the place of b
  CHECK(calls == 5);
  run("a");
  CHECK(calls == 5);
  run("b");
  CHECK(calls == 6);
}

TEST_CASE(
    "what cannot be recorded runs plainly and says why, and the stream is usable afterwards") {
  TROUPE_NEEDS_RECORDER();
  GraphCache cache;
  const at::Tensor x = at::ones({4}, there()), state = at::zeros({1}, there());
  int calls = 0;
  const GraphCache::Body waits = [&](const GraphCache::Tensors& in) {
    ++calls;
    state.add_(1);
    return GraphCache::Made{{in[0] * in[0].sum().item<float>()}};
  };
  CHECK(cache.run("waits", {x}, waits).tensors[0][0].item<float>() == 4);
  CHECK(cache.failure().empty());
  CHECK(cache.run("waits", {x}, waits).tensors[0][0].item<float>() == 4);
  CHECK(!cache.failure().empty());
  CHECK(calls == 3);  // once in vain
  CHECK(state[0].item<float>() == 2);
  CHECK((x + 1)[0].item<float>() == 2);
  CHECK(cache.run("waits", {x}, waits).tensors[0][0].item<float>() == 4);
  CHECK(calls == 4);
  CHECK(cache.recordings() == 0);
}
