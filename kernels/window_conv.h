#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/linear.h"

namespace troupe::kernels {

/// A convolution of side 3 as a product in 8 bits: of each output position the window of inputs is
/// one row, quantized by its largest magnitude. So a position's value depends on
/// its window alone, whichever rows of the map are computed with it.
class WindowConv {
 public:
  /// weight [out, in, 3, 3] of any floating type; bias [out] or undefined.
  WindowConv(const at::Tensor& weight, const at::Tensor& bias, WeightType type);

  /// x [B, in, h, w], with a column of zeros thought of either way and no rows, to [B, out, (h - 3)
  /// / stride + 1, (w - 1) / stride + 1], channels last.
  at::Tensor operator()(const at::Tensor& x, int64_t stride) const;

  int64_t bytes() const { return product_.bytes(); }
  int64_t out_channels() const { return product_.out_features(); }

 private:
  /// Writes the values [positions, out] of rows [in, h, w], in float32 on a CPU.
  void write_on_cpu(const at::Tensor& rows, int64_t stride, int64_t out_width,
                    at::Tensor& out) const;

  Linear product_;  // of windows [3, 3, in]
};

}  // namespace troupe::kernels
