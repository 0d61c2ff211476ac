#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::models {

class WeightStore;

namespace vae {

/// Where layers take their weights from: one dtype, one device, convolution weights channels-last
/// on the CPU (oneDNN's own order: the whole decoder runs about twice as fast as in rows).
class Loader {
 public:
  Loader(const WeightStore& weights, at::ScalarType dtype, at::Device device)
      : weights_(weights), dtype_(dtype), device_(device) {}

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
};

/// Stride 1, output as high and wide as the input. With GroupNorm and Attention the only layers
/// that look beyond their own row.
struct Conv2d {
  Conv2d() = default;
  Conv2d(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
         std::int64_t side);
  at::Tensor operator()(const at::Tensor& x) const;

  at::Tensor weight, bias;
};

struct GroupNorm {
  GroupNorm() = default;
  GroupNorm(const Loader& load, const std::string& name, std::int64_t channels,
            std::int64_t num_groups);
  at::Tensor operator()(const at::Tensor& x) const;

  at::Tensor weight, bias;
  std::int64_t groups = 1;
};

struct ResnetBlock2D {
  ResnetBlock2D(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
                std::int64_t num_groups);
  at::Tensor operator()(const at::Tensor& x) const;

  GroupNorm norm1, norm2;
  Conv2d conv1, conv2, conv_shortcut;
  bool has_shortcut;
};

/// One head over all positions, with its own norm and residual.
struct Attention {
  Attention(const Loader& load, const std::string& name, std::int64_t channels,
            std::int64_t num_groups);
  at::Tensor operator()(const at::Tensor& x) const;

  GroupNorm group_norm;
  at::Tensor q, k, v, out;
  at::Tensor q_bias, k_bias, v_bias, out_bias;
};

/// Doubles height and width by repetition, then a convolution.
struct Upsample2D {
  Upsample2D(const Loader& load, const std::string& name, std::int64_t channels)
      : conv(load, name + ".conv", channels, channels, 3) {}
  at::Tensor operator()(const at::Tensor& x) const;

  Conv2d conv;
};

}  // namespace vae
}  // namespace troupe::models
