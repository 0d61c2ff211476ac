// A process that asks for a GPU, before or after it has set a seed.
#include <ATen/ATen.h>

#include <cstdio>
#include <string_view>

#include "actors/device.h"
#ifdef TROUPE_AS_GPU_TEST
#include "tests/gpu/gpu.h"
#endif

int main(int argc, char** argv) {
  const bool late = argc > 1 && std::string_view(argv[1]) == "late";
  if (late) at::manual_seed(1);
#ifdef TROUPE_AS_GPU_TEST
  if (troupe::testing::gpu()) {
    std::puts("opened");
    return 0;
  }
  std::puts(troupe::testing::why_no_gpu().c_str());
  return 1;
#else
  try {
    troupe::actors::open_device("cuda:0");
    at::manual_seed(1);
    std::puts("opened");
    return 0;
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
#endif
}
