#include "actors/device.h"

#include <c10/util/Exception.h>

#include <stdexcept>

#include "tests/support/doctest.h"

using namespace troupe::actors;

TEST_CASE("errors that CUDA's documentation calls final stick, others pass") {
  for (const int code :
       {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911})
    CHECK(sticks(code));
  // Success, a wrong argument, no memory, no device, not ready, a failed launch, a bad capture.
  for (const int code : {0, 1, 2, 100, 600, 701, 901, 999})
    CHECK_FALSE(sticks(code));
}

TEST_CASE("what was thrown tells whether the device is lost") {
  const c10::AcceleratorError lost({__func__, __FILE__, __LINE__}, kIllegalAddress,
                                   "CUDA error: an illegal memory access\nmore");
  CHECK(lost_device(lost, at::kCPU) == "error 700, CUDA error: an illegal memory access");
  const c10::AcceleratorError passing({__func__, __FILE__, __LINE__}, 2,
                                      "CUDA error: out of memory");
  CHECK_FALSE(lost_device(passing, at::kCPU));
  CHECK_FALSE(lost_device(std::runtime_error("CUDA error: an illegal memory access"), at::kCPU));
}
