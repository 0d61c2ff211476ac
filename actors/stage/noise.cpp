#include "actors/stage/noise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <stdexcept>

namespace troupe::actors {

NoiseSource::NoiseSource(std::uint64_t seed, std::vector<std::int64_t> shape,
                         at::ScalarType draw_type)
    : NoiseSource({{.pictures = static_cast<std::int32_t>(shape.at(0)), .seed = seed}}, shape,
                  draw_type) {}

NoiseSource::NoiseSource(const std::vector<wire::SeedRun>& runs, std::vector<std::int64_t> shape,
                         at::ScalarType draw_type)
    : shape_(std::move(shape)), draw_type_(draw_type) {
  std::int64_t pictures = 0;
  for (const auto& run : runs) {
    runs_.push_back({run.pictures, at::detail::createCPUGenerator(run.seed)});
    pictures += run.pictures;
  }
  if (runs_.empty() || pictures != shape_.at(0)) {
    throw std::invalid_argument("[noise] seeds are given for " + std::to_string(pictures) +
                                " pictures, there are " + std::to_string(shape_.at(0)));
  }
}

at::Tensor NoiseSource::draw() {
  if (runs_.size() == 1) return draw(runs_.front(), shape_.front());
  std::vector<at::Tensor> parts;
  for (auto& run : runs_)
    parts.push_back(draw(run, run.pictures));
  return at::cat(parts);
}

at::Tensor NoiseSource::draw_one_each() {
  std::vector<at::Tensor> parts;
  for (auto& run : runs_)
    parts.push_back(draw(run, 1));
  return at::cat(parts);
}

at::Tensor NoiseSource::draw(Run& run, std::int64_t pictures) {
  auto shape = shape_;
  shape.front() = pictures;
  return at::randn(shape, run.generator, at::TensorOptions().dtype(draw_type_)).to(at::kFloat);
}

}  // namespace troupe::actors
