#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "models/vae/halo_port.h"
#include "models/vae/loader.h"

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

}  // namespace troupe::models::vae
