#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace troupe::models {

class WeightStore;

namespace vae {

/// Source of the layers' weights: one dtype, one device, convolution weights channels-last on the
/// CPU (oneDNN's own order: the whole decoder runs about twice as fast as in rows).
class Loader {
 public:
  /// Function that reads a tensor in place of the checkpoint: it may count tensors, change values,
  /// or end the loading.
  using Get = std::function<at::Tensor(const std::string& name, at::IntArrayRef shape)>;

  Loader(const WeightStore& weights, at::ScalarType dtype, at::Device device, Get get = {})
      : weights_(weights), dtype_(dtype), device_(device), get_(std::move(get)) {}

  at::Tensor get(const std::string& name, std::vector<std::int64_t> shape) const;
  /// The first of `names` that the checkpoint has.
  at::Tensor get_any(std::initializer_list<std::string> names,
                     std::vector<std::int64_t> shape) const;
  /// A convolution's weight, laid out for the device.
  at::Tensor get_kernel(const std::string& name, std::vector<std::int64_t> shape) const;
  at::MemoryFormat memory_format() const;

 private:
  const WeightStore& weights_;
  at::ScalarType dtype_;
  at::Device device_;
  Get get_;
};

}  // namespace vae
}  // namespace troupe::models
