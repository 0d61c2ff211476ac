// Looking for NaN on a GPU, which the host does not wait for.
#include "actors/stage/finite_check.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "tests/gpu/gpu.h"

#include "tests/support/doctest.h"

using troupe::actors::FiniteCheck;
using troupe::actors::LayerWatch;

TEST_CASE("a NaN on a GPU is named by a later call, with its layer") {
  TROUPE_NEEDS_GPU();
  const auto device = *troupe::testing::gpu();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const double value : {NAN, INFINITY, -INFINITY}) {
      FiniteCheck check(device);
      auto values = at::rand({64, 64}, device).to(type);
      LayerWatch layers;
      layers.see("block 7", values);
      check.require(at::full({4}, 6e4, values.options()), "a large one", "a type", layers);
      check.settle([] {});
      values[5][6].fill_(value);
      layers.see("block 8", values);
      CHECK_NOTHROW(check.require(values, "step 3", "a type", layers));
      std::string words;
      try {
        check.settle([] { std::this_thread::yield(); });
      } catch (const std::runtime_error& error) {
        words = error.what();
      }
      CHECK(words == "[actor] step 3 is not finite after block 7, in a type");
    }
  }
}

TEST_CASE("the host does not wait for what its stream still computes") {
  TROUPE_NEEDS_GPU();
  const auto device = *troupe::testing::gpu();
  FiniteCheck check(device);
  const LayerWatch layers;
  const auto values = at::full({4096, 4096}, 1.0 / 4096, device);
  check.require(values, "warm", "float32", layers);  // pinned memory is made here
  check.settle([] {});
  // Far more work than issuing it takes; the answer stands behind it.
  at::Tensor product = values;
  for (int i = 0; i < 200; ++i)
    product = at::matmul(product, values);
  check.require(product, "last", "float32", layers);
  int pauses = 0;
  check.settle([&] {
    ++pauses;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
  CHECK(pauses > 0);
}
