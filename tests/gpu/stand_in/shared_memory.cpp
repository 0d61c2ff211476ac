#include "tests/gpu/stand_in/shared_memory.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tests/gpu/stand_in/block.h"

namespace troupe::cuda_stand_in {
namespace {

constexpr std::size_t kMost = 48 * 1024, kGap = 64, kAlignment = 16;
constexpr int kMostArrays = 64;
constexpr std::byte kFill{0xff};

struct Array {
  const void* declaration;
  std::size_t first, size;
};

struct Memory {
  alignas(kAlignment) std::byte bytes[kMost + (kMostArrays + 1) * (kGap + kAlignment)];
  std::size_t used = sizeof(bytes);  // the first clearing fills all
  std::size_t in_arrays = 0;
  std::vector<Array> arrays;
};

Memory& memory() {
  static Memory memory;
  return memory;
}

}  // namespace

void clear_shared_memory() {
  Memory& all = memory();
  std::fill_n(all.bytes, all.used, kFill);
  all.used = kGap;
  all.in_arrays = 0;
  all.arrays.clear();
}

void* shared_memory(const void* declaration, std::size_t size) {
  Memory& all = memory();
  for (const Array& array : all.arrays)
    if (array.declaration == declaration) return all.bytes + array.first;
  const std::size_t first = (all.used + kAlignment - 1) / kAlignment * kAlignment;
  all.in_arrays += size;
  if (all.in_arrays > kMost || all.arrays.size() == kMostArrays)
    fail_block("more than 48 KiB of shared memory, or than 64 arrays there");
  all.arrays.push_back({declaration, first, size});
  all.used = first + size + kGap;
  return all.bytes + first;
}

bool shared_memory_whole() {
  const Memory& all = memory();
  std::size_t at = 0;
  const auto empty = [&](std::size_t end) {
    return std::all_of(all.bytes + at, all.bytes + end, [](std::byte b) { return b == kFill; });
  };
  for (const Array& array : all.arrays) {
    if (!empty(array.first)) return false;
    at = array.first + array.size;
  }
  return empty(all.used);
}

}  // namespace troupe::cuda_stand_in
