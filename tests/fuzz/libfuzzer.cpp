// One libFuzzer program for all targets: `troupe_fuzz_NAME` is a link to it, or TROUPE_FUZZ_TARGET
// says which. With `--write-seeds FOLDER` it only writes the seeds that are made in code.
#include <cstring>

#include "tests/fuzz/target.h"

namespace {

const troupe::fuzz::Target& chosen() {
  static const troupe::fuzz::Target& target = []() -> const troupe::fuzz::Target& {
    const char* name = std::getenv("TROUPE_FUZZ_TARGET");
    for (const auto& one : troupe::fuzz::targets()) {
      if (name && std::strcmp(one.name, name) == 0) return one;
    }
    std::fprintf(stderr, "TROUPE_FUZZ_TARGET must be one of:");
    for (const auto& one : troupe::fuzz::targets())
      std::fprintf(stderr, " %s", one.name);
    std::fprintf(stderr, "\n");
    std::exit(2);
  }();
  return target;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc == 3 && std::strcmp((*argv)[1], "--write-seeds") == 0) {
    for (const auto& target : troupe::fuzz::targets()) {
      const std::filesystem::path folder = std::filesystem::path((*argv)[2]) / target.name;
      std::filesystem::create_directories(folder);
      int number = 0;
      for (const auto& seed : target.seeds())
        std::ofstream(folder / ("seed-" + std::to_string(number++)), std::ios::binary) << seed;
    }
    std::exit(0);
  }
  chosen();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const auto& target = chosen();
  if (size > target.max_bytes) return -1;
  target.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
