#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace troupe::testing {

/// The GPU that tests use, LibTorch's CUDA half loaded; nothing where there is none.
std::optional<at::Device> gpu();
/// Returns why `gpu()` is empty.
const std::string& why_no_gpu();
/// Returns whether a missing GPU is a failure: scripts/gpu-check sets TROUPE_REQUIRE_GPU.
bool gpu_required();
/// Returns whether the GPU is the one of tests/gpu/pretend, whose arithmetic is the CPU's.
bool gpu_is_pretended();

}  // namespace troupe::testing

/// First in a test case: leaves it, saying so, where there is no GPU.
#define TROUPE_NEEDS_GPU()                                                      \
  do {                                                                          \
    if (!troupe::testing::gpu()) {                                              \
      if (troupe::testing::gpu_required()) FAIL(troupe::testing::why_no_gpu()); \
      MESSAGE("skipped, no GPU here: " << troupe::testing::why_no_gpu());       \
      return;                                                                   \
    }                                                                           \
  } while (false)
