#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "transport/wire/job.h"

namespace troupe::actors {

/// Unit-variance noise of a whole batch [n, C, h, w], draw after draw from torch's CPU generator as
/// diffusers does it, so that a seed means the same picture there and here. Where its pictures have
/// several seeds, each seed's are drawn as a batch of them alone would be.
class NoiseSource {
 public:
  /// `draw_type` is float32, or the compute type when the request asks for the noise that a
  /// half-precision pipeline of diffusers would draw.
  NoiseSource(std::uint64_t seed, std::vector<std::int64_t> shape, at::ScalarType draw_type);
  /// `shape` [n, C, h, w] with as many pictures as the runs have in all; at least one run.
  NoiseSource(const std::vector<wire::SeedRun>& runs, std::vector<std::int64_t> shape,
              at::ScalarType draw_type);

  /// Draws the next noise of all pictures, float32.
  at::Tensor draw();
  /// Draws the next noise of one picture for each seed, [seeds, C, h, w].
  at::Tensor draw_one_each();

 private:
  struct Run {
    std::int64_t pictures = 0;
    at::Generator generator;
  };
  at::Tensor draw(Run& run, std::int64_t pictures);

  std::vector<Run> runs_;
  std::vector<std::int64_t> shape_;
  at::ScalarType draw_type_;
};

}  // namespace troupe::actors
