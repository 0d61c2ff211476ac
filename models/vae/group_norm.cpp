#include "models/vae/group_norm.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda_library.h"
#include "kernels/group_moments.h"

namespace troupe::models::vae {
namespace {

constexpr std::int64_t kChunkRows = 4096;  // one task
constexpr std::int64_t kBlockRows = 64;    // summed in float32
constexpr std::int64_t kWidened = std::int64_t{1} << 25;

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

// Writes mean and biased variance of each group to into[0] and into[1].
template <class T>
void group_moments(const T* x, std::int64_t rows, std::int64_t channels, std::int64_t groups,
                   double* into) {
  const std::vector<float> shift(x, x + channels);
  const Moments moments = moments_of(x, rows, shift);
  const std::int64_t width = channels / groups;
  const auto n = static_cast<double>(rows);
  for (std::int64_t group = 0; group < groups; ++group) {
    const std::int64_t first = group * width;
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
    into[group] = mean;
    into[groups + group] = variance;
  }
}

template <class T>
void scale_and_add(const T* x, T* y, std::int64_t rows, std::int64_t channels, const float* f,
                   const float* a) {
  at::parallel_for(0, rows, kBlockRows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* from = x + r * channels;
      T* to = y + r * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        to[c] = static_cast<T>(static_cast<float>(from[c]) * f[c] + a[c]);
      }
    }
  });
}

bool has_own_kernel(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() != at::kDouble;
}

// Mean and biased variance of each group over this shard's rows, [2, groups] float64.
at::Tensor own_moments(const at::Tensor& x, std::int64_t groups) {
  if (x.is_cuda() && kernels::cuda_kernels()) return kernels::group_moments(x, groups);
  if (!has_own_kernel(x)) {
    // Half precision is widened a few groups at a time.
    const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const std::int64_t each = std::max<std::int64_t>(1, kWidened * groups / x.numel());
    std::vector<at::Tensor> parts;
    for (const at::Tensor& some : x.contiguous().view({groups, -1}).split(each)) {
      const auto [variance, mean] = at::var_mean(some.to(wide), at::IntArrayRef{1}, 0);
      parts.push_back(at::stack({mean, variance}).to(at::kDouble));
    }
    return at::cat(parts, 1);
  }
  const at::Tensor input = x.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor moments = at::empty({2, groups}, at::kDouble);
  AT_DISPATCH_SWITCH(x.scalar_type(), "group_norm_affine",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       group_moments(input.const_data_ptr<scalar_t>(), x.size(2) * x.size(3),
                                     x.size(1), groups, moments.mutable_data_ptr<double>());
                     }));
  return moments;
}

// Over all rows. About zero in float64: that loses nothing of what float32 values can tell.
at::Tensor all_moments(const at::Tensor& own, std::int64_t rows, HaloPort& port) {
  const at::Tensor raw = at::empty({3, own.size(1)}, own.options());
  raw[0].fill_(static_cast<double>(rows));
  raw[1].copy_(own[0] * rows);
  raw[2].copy_((own[1] + own[0].square()) * rows);
  port.sum(raw);
  const at::Tensor mean = raw[1] / raw[0];
  return at::stack({mean, (raw[2] / raw[0] - mean.square()).clamp_min(0)});
}

}  // namespace

ChannelAffine group_norm_affine(const at::Tensor& x, std::int64_t groups, const at::Tensor& weight,
                                const at::Tensor& bias, double epsilon, HaloPort& port) {
  at::Tensor moments = own_moments(x, groups);
  if (port.shards() > 1) moments = all_moments(moments, x.size(2), port);
  const at::Tensor scale = (moments[1].clamp_min(0) + epsilon).sqrt().reciprocal();
  const at::Tensor factor =
      (weight.to(at::kDouble).view({groups, -1}) * scale.unsqueeze(1)).view({-1});
  const at::Tensor shifted = factor.view({groups, -1}) * moments[0].unsqueeze(1);
  const auto type = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {factor.to(type), (bias.to(at::kDouble) - shifted.view({-1})).to(type)};
}

at::Tensor apply_affine(const at::Tensor& x, const ChannelAffine& affine) {
  if (!has_own_kernel(x)) {
    const auto by_channel = [](const at::Tensor& t) { return t.view({1, -1, 1, 1}); };
    return at::addcmul(by_channel(affine.addend), x.to(affine.factor.scalar_type()),
                       by_channel(affine.factor))
        .to(x.scalar_type());
  }
  const at::Tensor input = x.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor output = at::empty_like(input, at::MemoryFormat::ChannelsLast);
  AT_DISPATCH_SWITCH(x.scalar_type(), "apply_affine",
                     AT_DISPATCH_CASE_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, [&] {
                       scale_and_add(input.const_data_ptr<scalar_t>(),
                                     output.mutable_data_ptr<scalar_t>(), x.size(2) * x.size(3),
                                     x.size(1), affine.factor.const_data_ptr<float>(),
                                     affine.addend.const_data_ptr<float>());
                     }));
  return output;
}

}  // namespace troupe::models::vae
