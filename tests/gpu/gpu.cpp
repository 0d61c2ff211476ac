#include "tests/gpu/gpu.h"

#include <cstdlib>
#include <exception>

#include "actors/device.h"

namespace troupe::testing {
namespace {

struct Found {
  std::optional<at::Device> device;
  std::string why;
};

Found look() {
  Found found;
  try {
    found.device = actors::open_device("cuda:0");
  } catch (const std::exception& error) {
    found.why = error.what();
  }
  return found;
}

const Found& found() {
  static const Found result = look();
  return result;
}

// Before any test case: cases run in the order of files, and one that sets a seed would be the
// first to ask LibTorch about CUDA.
[[maybe_unused]] const Found& opened_first = found();

}  // namespace

std::optional<at::Device> gpu() {
  return found().device;
}

const std::string& why_no_gpu() {
  return found().why;
}

bool gpu_required() {
  return std::getenv("TROUPE_REQUIRE_GPU") != nullptr;
}

bool gpu_is_pretended() {
  return std::getenv("TROUPE_PRETEND_SEED") != nullptr;
}

}  // namespace troupe::testing
