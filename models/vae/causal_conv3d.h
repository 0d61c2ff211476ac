#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "models/vae/layers.h"

namespace troupe::models::vae {

/// The inputs of a convolution at the two frames before; undefined where there were none: zeros.
struct FrameMemory {
  at::Tensor before, last;
};

/// Memories of all causal convolutions of a network, while a video goes through it.
using FrameMemories = std::vector<FrameMemory>;

/// A convolution over this frame and the two before it, three frames of weights of `side` × `side`.
/// Frames come one at a time. Source: WanCausalConv3d of diffusers with its feature cache.
class CausalConv3d {
 public:
  CausalConv3d() = default;
  /// Takes the next memory, of which `memories` counts them. `side` 1 or 3.
  CausalConv3d(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
               std::int64_t side, int& memories);

  /// x [1, in, h, w], this shard's rows, which stays in memory → [1, out, h, w].
  at::Tensor operator()(const at::Tensor& x, FrameMemories& memories, const Pass& pass) const;
  int memory() const { return memory_; }

 private:
  Conv2d now_, last_, before_;
  int memory_ = 0;
};

}  // namespace troupe::models::vae
