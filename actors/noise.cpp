#include "actors/noise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace troupe::actors {

at::Tensor draw_noise(std::uint64_t seed, at::IntArrayRef shape, at::ScalarType draw_type) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::TensorOptions().dtype(draw_type)).to(at::kFloat);
}

}  // namespace troupe::actors
