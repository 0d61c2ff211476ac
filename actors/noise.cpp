#include "actors/noise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

namespace troupe::actors {

NoiseSource::NoiseSource(std::uint64_t seed, std::vector<std::int64_t> shape,
                         at::ScalarType draw_type)
    : generator_(at::detail::createCPUGenerator(seed)),
      shape_(std::move(shape)),
      draw_type_(draw_type) {}

at::Tensor NoiseSource::draw() {
  return draw(shape_.front());
}

at::Tensor NoiseSource::draw(std::int64_t pictures) {
  auto shape = shape_;
  shape.front() = pictures;
  return at::randn(shape, generator_, at::TensorOptions().dtype(draw_type_)).to(at::kFloat);
}

}  // namespace troupe::actors
