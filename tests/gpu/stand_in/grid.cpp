#include "tests/gpu/stand_in/grid.h"

#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu/stand_in/block.h"
#include "tests/gpu/stand_in/include/cuda_runtime_api.h"

namespace troupe::cuda_stand_in {

Place place;

namespace {

cudaError_t last_error = cudaSuccess;
std::uint32_t launches = 0;

std::string text_of(const Index& index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " +
         std::to_string(index.z) + ")";
}

bool a_device_takes(const Index& grid, const Index& block) {
  const auto within = [](const Index& extent, std::uint64_t x, std::uint64_t y, std::uint64_t z) {
    return extent.x >= 1 && extent.x <= x && extent.y >= 1 && extent.y <= y && extent.z >= 1 &&
           extent.z <= z;
  };
  return within(grid, 0x7fffffff, 65535, 65535) && within(block, 1024, 1024, 64) &&
         std::uint64_t{block.x} * block.y * block.z <= 1024;
}

void run_grid(const Index& grid, const Index& block, const std::function<void()>& thread,
              Order& order) {
  std::vector<std::size_t> numbers(std::size_t{grid.x} * grid.y * grid.z);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  order.arrange(numbers.begin(), numbers.end());
  place.grid_size = grid;
  for (const std::size_t number : numbers) {
    place.block = {static_cast<unsigned>(number % grid.x),
                   static_cast<unsigned>(number / grid.x % grid.y),
                   static_cast<unsigned>(number / grid.x / grid.y)};
    run_block(block, thread, order);
  }
}

}  // namespace

Launch::Launch(const char* kernel, Index grid, Index block, std::size_t shared_bytes, const void*)
    : kernel_(kernel), grid_(grid), block_(block) {
  if (shared_bytes != 0)
    throw std::runtime_error("[cuda stand-in] " + std::string(kernel) +
                             ": a launch's own shared memory is not stood in for");
}

void Launch::check_pointer(const void* pointer) const {
  if (pointer && !is_device_memory(pointer))
    throw std::runtime_error("[cuda stand-in] " + std::string(kernel_) +
                             ": an argument points to what is not device memory");
}

void Launch::run(const std::function<void()>& thread) const {
  if (!a_device_takes(grid_, block_)) {
    last_error = cudaErrorInvalidConfiguration;
    return;
  }
  ++launches;
  Order ascending(0), shuffled(launches);
  const auto refuse = [&](const std::string& why) {
    throw std::runtime_error("[cuda stand-in] " + std::string(kernel_) + why);
  };
  const Snapshot before;
  try {
    run_grid(grid_, block_, thread, ascending);
    const Snapshot after;
    before.restore();
    run_grid(grid_, block_, thread, shuffled);
    if (after == Snapshot()) return;
  } catch (const BlockError& error) {
    refuse(", block " + text_of(place.block) + ": " + error.what());
  }
  refuse(": what it leaves in memory depends on which threads run first");
}

int take_last_error() {
  return std::exchange(last_error, cudaSuccess);
}

}  // namespace troupe::cuda_stand_in
