#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/vae/halo_port.h"

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
  at::Device device() const { return device_; }

 private:
  const WeightStore& weights_;
  at::ScalarType dtype_;
  at::Device device_;
  Get get_;
};

}  // namespace vae

}  // namespace troupe::models

namespace troupe::models::vae {

/// Operation on rows [1, C, n, w] before a convolution reads them; position by position, into
/// memory of its own.
using Prepare = std::function<at::Tensor(const at::Tensor& rows)>;

/// The input of a convolution, of which only the rows being read exist at a time.
struct ConvInput {
  at::Tensor x;               ///< [1, C, h, w], this shard's rows
  Prepare prepare = nullptr;  ///< applied to the neighbours' rows, too
  std::int64_t repeat = 1;    ///< every row and column so many times over, after `prepare`
};

/// Height and width stay (stride 1), or are halved with a row and a column of zeros after the end
/// (stride 2, as diffusers pads it). Reads the neighbours' rows through the port, and works in runs
/// of rows where input or output are larger than a chunk.
class Conv2d {
 public:
  Conv2d() = default;
  /// `side` 1 or 3.
  Conv2d(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
         std::int64_t side, std::int64_t stride = 1);
  /// weight [out, in, side, side], laid out for the device; bias [out] or undefined. Stride 1.
  Conv2d(at::Tensor weight, at::Tensor bias) : weight_(std::move(weight)), bias_(std::move(bias)) {}

  at::Tensor operator()(const ConvInput& input, const Pass& pass) const;
  /// `onto` += the convolution; `onto` is none of the input.
  void add_to(const at::Tensor& onto, const ConvInput& input, const Pass& pass) const;

 private:
  using Sink = std::function<void(RowRun out, at::Tensor rows)>;
  std::int64_t before() const { return (weight_.size(2) - stride_) / 2; }
  std::int64_t after() const { return weight_.size(2) - stride_ - before(); }
  std::int64_t out_size(std::int64_t in) const;
  void run(const ConvInput& input, const Pass& pass, const Sink& sink) const;
  at::Tensor convolve(at::Tensor rows, std::int64_t zeros_above, std::int64_t zeros_below) const;

  at::Tensor weight_, bias_;
  std::int64_t stride_ = 1;
};

/// Operation of a group norm on each channel once its moments are known: x · factor + addend, [C]
/// in float32 (float64 for float64).
struct ChannelAffine {
  at::Tensor factor, addend;
};

/// The group norm over all rows of the picture, of which `x` [1, C, h, w] are this shard's: exact,
/// with a biased variance. Moments are summed about a value of the channel itself, in blocks, then
/// in float64 (ATen's channels-last kernel subtracts squared float32 sums and loses four digits
/// where the mean is thirty deviations), and shards add theirs up in float64. The result does not
/// depend on the threads. `weight` and `bias` [C] have x's dtype.
ChannelAffine group_norm_affine(const at::Tensor& x, std::int64_t groups, const at::Tensor& weight,
                                const at::Tensor& bias, double epsilon, HaloPort& port);

/// x · factor + addend in x's dtype, for any rows [1, C, h, w].
at::Tensor apply_affine(const at::Tensor& x, const ChannelAffine& affine);

/// One head: q [1, n, C] over k, v [N, C], in runs of queries where all scores would be many.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Called after each block.
using Tick = std::function<void()>;

struct GroupNorm {
  GroupNorm() = default;
  GroupNorm(const Loader& load, const std::string& name, std::int64_t channels,
            std::int64_t num_groups);
  /// Takes the moments of all rows of the picture.
  ChannelAffine over(const at::Tensor& x, const Pass& pass) const;
  /// Returns the norm, with SiLU after it, as an operation that prepares rows.
  Prepare with_silu(const at::Tensor& x, const Pass& pass) const;

  at::Tensor weight, bias;
  std::int64_t groups = 1;
};

/// Writes its result over `x` where the width stays, so at most x and one more feature map are
/// alive at a time.
struct ResnetBlock2D {
  ResnetBlock2D(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
                std::int64_t num_groups);
  at::Tensor operator()(at::Tensor x, const Pass& pass) const;

  GroupNorm norm1, norm2;
  Conv2d conv1, conv2;
  std::optional<Conv2d> conv_shortcut;
};

/// One head over all positions of the picture, with its own norm and residual; writes over `x`.
/// A shard answers for its own positions and sees everybody's keys and values.
struct Attention {
  Attention(const Loader& load, const std::string& name, std::int64_t channels,
            std::int64_t num_groups);
  at::Tensor operator()(at::Tensor x, const Pass& pass) const;

  GroupNorm group_norm;
  at::Tensor q, k, v, out;
  at::Tensor q_bias, k_bias, v_bias, out_bias;
};

}  // namespace troupe::models::vae
