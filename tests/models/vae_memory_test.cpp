#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/models/memory_halo.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe::models;
using namespace troupe::models::testing;

namespace {

struct Count {
  std::atomic<std::int64_t> now{0}, peak{0};
};

thread_local std::shared_ptr<Count> counted;

/// Blocks that some thread's count knows of. A freed block that is not found here was counted for
/// no thread.
struct Ledger {
  std::mutex mutex;
  std::map<void*, std::pair<std::shared_ptr<Count>, std::int64_t>> blocks;
  c10::DeleterFnPtr free = nullptr;
};

Ledger& ledger() {
  static Ledger one;
  return one;
}

/// Counts the memory of the CPU's tensors and convolutions, by the thread that asked for it.
class CountingAllocator final : public c10::Allocator {
 public:
  explicit CountingAllocator(c10::Allocator* below) : below_(below) {
    ledger().free = below->raw_deleter();
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* const start = below_->raw_allocate(bytes);
    if (counted && start) {
      const auto size = static_cast<std::int64_t>(bytes);
      counted->peak = std::max<std::int64_t>(counted->peak, counted->now += size);
      const std::lock_guard lock(ledger().mutex);
      ledger().blocks[start] = {counted, size};
    }
    return {start, start, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    below_->copy_data(to, from, bytes);
  }

 private:
  static void free_block(void* start) {
    {
      const std::lock_guard lock(ledger().mutex);
      const auto found = ledger().blocks.find(start);
      if (found != ledger().blocks.end()) {
        const auto& [count, size] = found->second;
        count->now -= size;
        ledger().blocks.erase(found);
      }
    }
    ledger().free(start);
  }
  c10::Allocator* below_;
};

class CountAllocations {
 public:
  CountAllocations() { c10::SetCPUAllocator(&own_, 255); }
  ~CountAllocations() { c10::SetCPUAllocator(before_, 255); }

 private:
  c10::Allocator* before_ = c10::GetCPUAllocator();
  CountingAllocator own_{before_};
};

template <class Work>
std::int64_t peak_of(const Work& work) {
  counted = std::make_shared<Count>();
  work();
  return std::exchange(counted, nullptr)->peak;
}

std::int64_t largest_peak(const AutoencoderKL& vae, const at::Tensor& latents, int shards) {
  const auto peaks = on_shards(
      shards, [&](HaloPort& port) { return peak_of([&] { vae.decode_rows(latents, port); }); });
  return *std::ranges::max_element(peaks);
}

}  // namespace

TEST_CASE("a shard's activations are its share of the picture's") {
  const OneThread one_thread;
  AutoencoderKL vae = load_vae(kDemoVae);
  vae.set_chunk_bytes(64 << 10);
  const auto latents = at::randn({1, 4, 32, 32});
  const CountAllocations counting;
  const std::int64_t one = largest_peak(vae, latents, 1);
  for (int shards : {2, 4, 8}) {
    const std::int64_t each = largest_peak(vae, latents, shards);
    MESSAGE(shards << " shards: " << each << " bytes each, one alone " << one);
    CHECK(each * shards < one * 11 / 10);
  }
}

TEST_CASE("beside two feature maps, memory does not grow with the picture") {
  const OneThread one_thread;
  AutoencoderKL vae = load_vae(kDemoVae);
  vae.set_chunk_bytes(64 << 10);
  const CountAllocations counting;
  std::int64_t workspaces[2];
  const int heights[] = {16, 48};
  for (int i = 0; i < 2; ++i) {
    const auto latents = at::randn({1, 4, heights[i], 24});
    WholePicture whole;
    const std::int64_t peak = peak_of([&] { vae.decode_rows(latents, whole); });
    // The widest: 32 channels in, then 16 twice, at the full size.
    const std::int64_t maps = std::int64_t{64} * heights[i] * 24 * (32 + 16 + 16) * 4;
    workspaces[i] = peak - maps;
  }
  MESSAGE("workspace " << workspaces[0] << " and " << workspaces[1] << " bytes");
  CHECK(workspaces[1] < workspaces[0] + (256 << 10));
  CHECK(workspaces[1] < (1 << 20));
}

TEST_CASE("tiles take the memory of one tile") {
  const OneThread one_thread;
  const AutoencoderKL vae = load_vae(kDemoVae);
  const CountAllocations counting;
  const auto latents = at::randn({1, 4, 64, 32});
  const std::int64_t tile = peak_of([&] { vae.decode(latents.narrow(2, 0, 16).narrow(3, 0, 16)); });
  const std::int64_t pixels = std::int64_t{3} * 64 * 32 * 64 * 4;
  const std::int64_t tiled = peak_of([&] { vae.decode_tiled(latents); });
  MESSAGE("one tile " << tile << ", tiled " << tiled << ", picture " << pixels << " bytes");
  CHECK(tiled < tile + 3 * pixels);
  CHECK(tiled < peak_of([&] { vae.decode(latents); }) / 2);
}
