#include "models/vae/loader.h"

#include <ATen/ATen.h>

#include <utility>

#include "models/safetensors.h"

namespace troupe::models::vae {

at::Tensor Loader::get(const std::string& name, std::vector<std::int64_t> shape) const {
  return get_ ? get_(name, shape) : weights_.get(name, shape, dtype_, device_);
}

at::Tensor Loader::get_any(std::initializer_list<std::string> names,
                           std::vector<std::int64_t> shape) const {
  for (const std::string& name : names) {
    if (weights_.contains(name)) return get(name, std::move(shape));
  }
  return get(*names.begin(), std::move(shape));
}

at::Tensor Loader::get_kernel(const std::string& name, std::vector<std::int64_t> shape) const {
  return get(name, std::move(shape)).contiguous(memory_format());
}

at::MemoryFormat Loader::memory_format() const {
  return device_.is_cpu() ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

}  // namespace troupe::models::vae
