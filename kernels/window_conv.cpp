#include "kernels/window_conv.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "kernels/cpu_kernels.h"
#include "kernels/simd/isa.h"

namespace troupe::kernels {
namespace {

/// Elements of windows that are made at a time.
constexpr int64_t kWindowElements = int64_t{1} << 22;

/// Windows of one map [height, width, channels] in float32 on a CPU.
struct Windows {
  const float* map;
  const float* largest;  // of each position
  int64_t width, channels, stride, out_width;

  /// Returns the largest magnitude in the window of output position `at`, NaN if one is NaN.
  float largest_of(int64_t at) const {
    const int64_t row = at / out_width * stride, column = at % out_width * stride - 1;
    float most = 0;
    for (int64_t y = row; y < row + 3; ++y) {
      const int64_t end = std::min(column + 3, width);
      for (int64_t x = std::max<int64_t>(column, 0); x < end; ++x) {
        const float one = largest[y * width + x];
        if (std::isnan(one) || one > most) most = one;
      }
    }
    return most;
  }

  /// Writes the window [3, 3, channels] as bytes, zeros for columns that are not there.
  void quantize(int64_t at, float most, std::int8_t* to) const {
    const int64_t row = at / out_width * stride, column = at % out_width * stride - 1;
    const int64_t begin = std::max<int64_t>(column, 0), end = std::min(column + 3, width);
    for (int64_t y = row; y < row + 3; ++y, to += 3 * channels) {
      if (end - begin < 3) std::fill_n(to, 3 * channels, std::int8_t{0});
      simd::table().quantize_rows(map + (y * width + begin) * channels, 1, (end - begin) * channels,
                                  &most, to + (begin - column) * channels);
    }
  }
};

}  // namespace

WindowConv::WindowConv(const at::Tensor& weight, const at::Tensor& bias, WeightType type)
    : product_(quantize_weight(weight.permute({0, 2, 3, 1}).reshape({weight.size(0), -1}), type),
               bias) {}

at::Tensor WindowConv::operator()(const at::Tensor& x, int64_t stride) const {
  const int64_t depth = product_.in_features(), height = x.size(2), width = x.size(3);
  if (x.dim() != 4 || 9 * x.size(1) != depth || height < 3 || width < 1) {
    std::ostringstream text;
    text << "[WindowConv] x has shape " << x.sizes() << ", must be [B, " << depth / 9
         << ", 3 rows or more, columns]";
    throw std::invalid_argument(text.str());
  }
  const int64_t out_height = (height - 3) / stride + 1, out_width = (width - 1) / stride + 1;
  at::Tensor out = at::empty({x.size(0), out_height, out_width, out_channels()}, x.options());
  const int64_t run = std::max<int64_t>(kWindowElements / (out_width * depth), 1);
  for (int64_t item = 0; item < x.size(0); ++item) {
    for (int64_t first = 0; first < out_height; first += run) {
      const int64_t last = std::min(first + run, out_height);
      at::Tensor own = out[item].slice(0, first, last).view({-1, out_channels()});
      const at::Tensor rows = x[item].slice(1, first * stride, (last - 1) * stride + 3);
      if (x.is_cpu() && x.scalar_type() == at::kFloat) {
        write_on_cpu(rows, stride, out_width, own);
      } else {
        const at::Tensor windows = at::im2col(rows, {3, 3}, {1, 1}, {0, 1}, {stride, stride});
        own.copy_(product_(
            windows.view({-1, 9, own.size(0)}).permute({2, 1, 0}).reshape({own.size(0), depth})));
      }
    }
  }
  return out.permute({0, 3, 1, 2});
}

void WindowConv::write_on_cpu(const at::Tensor& rows, int64_t stride, int64_t out_width,
                              at::Tensor& out) const {
  const at::Tensor map = rows.permute({1, 2, 0}).contiguous();  // [height, width, channels]
  const int64_t depth = product_.in_features(), count = out.size(0);
  const at::Tensor each = largest_of_rows(map);
  const Windows windows{map.const_data_ptr<float>(),
                        each.const_data_ptr<float>(),
                        map.size(1),
                        map.size(2),
                        stride,
                        out_width};
  at::Tensor largest = at::empty({count}, map.options());
  at::Tensor bytes = at::empty({count, depth}, map.options().dtype(at::kChar));
  float* most = largest.mutable_data_ptr<float>();
  auto* to = bytes.mutable_data_ptr<std::int8_t>();
  parallel_for(0, count, 16, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      most[at] = windows.largest_of(at);
      windows.quantize(at, most[at], to + at * depth);
    }
  });
  product_.of_bytes(bytes, largest, out);
}

}  // namespace troupe::kernels
