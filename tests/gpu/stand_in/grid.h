#pragma once

#include <cstddef>
#include <functional>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/gpu/stand_in/device_memory.h"

/// CUDA's language besides C++: threads of a block that run side by side, each on a fiber, wait for
/// each other and exchange values. Blocks run one after another.
namespace troupe::cuda_stand_in {

struct Index {
  constexpr Index(unsigned in_x = 1, unsigned in_y = 1, unsigned in_z = 1)
      : x(in_x), y(in_y), z(in_z) {}
  unsigned x, y, z;
};

/// The thread that runs.
struct Place {
  Index thread, block, block_size, grid_size;
};
extern Place place;

/// Place where a thread waits for others.
struct Wait {
  enum Kind { kBlock, kWarp, kShuffle };
  Kind kind;
  unsigned mask;  // lanes of the warp, but for kBlock
  std::source_location where;
};

/// Suspends the calling thread until all that it waits for have come to the same place: living
/// threads of the block, living lanes of the mask, or, for a shuffle, all lanes of the mask, none
/// of which may have ended.
void wait_for(const Wait& wait);
/// Shuffles at most 8 bytes: `mine` is what this lane gives, `theirs` what `lane ^ step` gave.
void exchange(const Wait& wait, unsigned step, const void* mine, void* theirs, std::size_t size);

/// An array of the block, 0xff at first; `declaration` tells one from another.
void* shared_memory(const void* declaration, std::size_t size);

template <typename Array, typename Declaration>
Array& shared() {
  static_assert(alignof(Array) <= 16);
  static char declaration;
  return *static_cast<Array*>(shared_memory(&declaration, sizeof(Array)));
}

/// kernel<<<grid, block, shared, stream>>>(arguments…) has become
/// Launch("kernel", grid, block, shared, stream)(kernel, arguments…).
///
/// Every launch runs twice from the same device memory, first with blocks, warps and lanes in
/// ascending order, then shuffled. Throws std::runtime_error if the two leave different bits, if
/// threads wait for each other that never come together, if bytes beside a shared array are
/// written, or if an argument points to what is not device memory. A grid that no device takes is
/// not run but told by cudaGetLastError.
class Launch {
 public:
  Launch(const char* kernel, Index grid, Index block, std::size_t shared_bytes = 0,
         const void* stream = nullptr);

  template <typename... Parameters, typename... Arguments>
  void operator()(void (*kernel)(Parameters...), Arguments&&... arguments) const {
    static_assert((!std::is_reference_v<Parameters> && ...), "kernels take values");
    const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
    std::apply([&](const auto&... value) { (check_argument(value), ...); }, values);
    run([&] { std::apply(kernel, values); });
  }

 private:
  template <typename T>
  void check_argument(const T& value) const {
    if constexpr (std::is_pointer_v<T>) check_pointer(value);
  }
  void check_pointer(const void* pointer) const;
  void run(const std::function<void()>& thread) const;

  const char* kernel_;
  Index grid_, block_;
};

/// Returns what cudaGetLastError says, which forgets it.
int take_last_error();

}  // namespace troupe::cuda_stand_in
