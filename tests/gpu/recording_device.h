#pragma once

#include <c10/core/Device.h>

#include <cstdlib>
#include <optional>

#ifdef TROUPE_GRAPH_STAND_IN

namespace troupe::testing {

/// A recorder of LibTorch's calls on the CPU stands for a GPU's (tests/support/graph_stand_in.cpp).
inline const bool kStandsIn = setenv("TROUPE_CUDA_GRAPH", TROUPE_GRAPH_STAND_IN, 1) == 0 &&
                              setenv("TROUPE_CPU_KERNELS", "library", 1) == 0;
inline std::optional<at::Device> recording_device() {
  return kStandsIn ? std::optional(at::Device(at::kCPU)) : std::nullopt;
}

}  // namespace troupe::testing

#define TROUPE_NEEDS_RECORDER() REQUIRE(troupe::testing::recording_device())

#else

#include "tests/gpu/gpu.h"

namespace troupe::testing {

inline std::optional<at::Device> recording_device() {
  return gpu();
}

}  // namespace troupe::testing

/// First in a test case: leaves it, saying so, where nothing can be recorded.
#define TROUPE_NEEDS_RECORDER() TROUPE_NEEDS_GPU()

#endif
