#include "models/vae/group_norm.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace troupe::models::vae {
namespace {

constexpr std::int64_t kChunkRows = 4096;  // one task
constexpr std::int64_t kBlockRows = 64;    // summed in float32

struct Moments {
  std::vector<double> sum, square;
};

template <class T>
void add_block(const T* x, std::int64_t rows, const std::vector<float>& shift, Moments& into) {
  const auto channels = static_cast<std::int64_t>(shift.size());
  std::vector<float> sum(channels, 0.0f);
  std::vector<float> square(channels, 0.0f);
  for (std::int64_t r = 0; r < rows; ++r, x += channels) {
    for (std::int64_t c = 0; c < channels; ++c) {
      const float d = static_cast<float>(x[c]) - shift[c];
      sum[c] += d;
      square[c] += d * d;
    }
  }
  for (std::int64_t c = 0; c < channels; ++c) {
    into.sum[c] += sum[c];
    into.square[c] += square[c];
  }
}

template <class T>
Moments moments_of(const T* x, std::int64_t rows, const std::vector<float>& shift) {
  const size_t channels = shift.size();
  const std::int64_t chunks = (rows + kChunkRows - 1) / kChunkRows;
  const Moments zero{std::vector<double>(channels, 0.0), std::vector<double>(channels, 0.0)};
  std::vector<Moments> parts(chunks, zero);
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t last = std::min(rows, (chunk + 1) * kChunkRows);
      for (std::int64_t r = chunk * kChunkRows; r < last; r += kBlockRows) {
        add_block(x + r * static_cast<std::int64_t>(channels), std::min(kBlockRows, last - r),
                  shift, parts[chunk]);
      }
    }
  });
  Moments total = zero;
  for (const Moments& part : parts) {
    for (size_t c = 0; c < channels; ++c) {
      total.sum[c] += part.sum[c];
      total.square[c] += part.square[c];
    }
  }
  return total;
}

// Turns moments into one factor and one addend a channel.
template <class T>
void affine_of(const Moments& moments, const std::vector<float>& shift, std::int64_t rows,
               std::int64_t groups, const T* weight, const T* bias, double epsilon,
               std::vector<float>& factor, std::vector<float>& addend) {
  const auto width = static_cast<std::int64_t>(shift.size()) / groups;
  const auto n = static_cast<double>(rows);
  for (std::int64_t first = 0; first < width * groups; first += width) {
    double mean = 0;
    for (std::int64_t c = first; c < first + width; ++c) {
      mean += (shift[c] + moments.sum[c] / n) / static_cast<double>(width);
    }
    double variance = 0;
    for (std::int64_t c = first; c < first + width; ++c) {
      const double own = moments.sum[c] / n;
      const double apart = shift[c] + own - mean;
      variance += (moments.square[c] / n - own * own + apart * apart) / static_cast<double>(width);
    }
    const double scale = 1 / std::sqrt(std::max(variance, 0.0) + epsilon);
    for (std::int64_t c = first; c < first + width; ++c) {
      const double f = static_cast<double>(static_cast<float>(weight[c])) * scale;
      factor[c] = static_cast<float>(f);
      addend[c] = static_cast<float>(static_cast<double>(static_cast<float>(bias[c])) - mean * f);
    }
  }
}

template <class T>
void normalise(const T* x, T* y, std::int64_t rows, std::int64_t groups, const T* weight,
               const T* bias, double epsilon, std::int64_t channels) {
  const std::vector<float> shift(x, x + channels);
  const Moments moments = moments_of(x, rows, shift);
  std::vector<float> factor(channels);
  std::vector<float> addend(channels);
  affine_of(moments, shift, rows, groups, weight, bias, epsilon, factor, addend);
  at::parallel_for(0, rows, kBlockRows, [&](std::int64_t begin, std::int64_t end) {
    const float* f = factor.data();
    const float* a = addend.data();
    for (std::int64_t r = begin; r < end; ++r) {
      const T* from = x + r * channels;
      T* to = y + r * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        to[c] = static_cast<T>(static_cast<float>(from[c]) * f[c] + a[c]);
      }
    }
  });
}

}  // namespace

at::Tensor group_norm_channels_last(const at::Tensor& x, std::int64_t groups,
                                    const at::Tensor& weight, const at::Tensor& bias,
                                    double epsilon) {
  const at::Tensor input = x.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor output = at::empty_like(input);
  const std::int64_t channels = x.size(1);
  const std::int64_t rows = x.size(2) * x.size(3);
  AT_DISPATCH_SWITCH(x.scalar_type(), "group_norm_channels_last",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       normalise(input.const_data_ptr<scalar_t>(),
                                 output.mutable_data_ptr<scalar_t>(), rows, groups,
                                 weight.const_data_ptr<scalar_t>(), bias.const_data_ptr<scalar_t>(),
                                 epsilon, channels);
                     }));
  return output;
}

}  // namespace troupe::models::vae
