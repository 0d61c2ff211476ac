#include "kernels/norm_rotate.h"

#include <cmath>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/cpu_kernels.h"
#include "kernels/cuda_calls.h"
#include "kernels/parallel.h"

namespace troupe::kernels {

namespace {

constexpr int64_t kHeadGrain = 64;

void check_shapes(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& cosine,
                  const at::Tensor& sine) {
  const auto angles_fit = [&](const at::Tensor& t) {
    return t.dim() == 2 && t.size(0) == x.size(1) && t.size(1) * 2 == x.size(3);
  };
  const bool fits = x.dim() == 4 && (x.size(3) == 1 || x.stride(3) == 1) &&
                    (!weight.defined() || (weight.dim() == 1 && weight.size(0) == x.size(3))) &&
                    cosine.defined() == sine.defined() &&
                    (!cosine.defined() || (angles_fit(cosine) && angles_fit(sine)));
  if (fits) return;
  std::ostringstream text;
  text << "[norm_rotate] x " << x.sizes() << " with strides " << x.strides();
  if (weight.defined()) text << ", weight " << weight.sizes();
  if (cosine.defined()) text << ", cosine " << cosine.sizes();
  if (sine.defined()) text << ", sine " << sine.sizes();
  throw std::invalid_argument(text.str());
}

void one_head(float* head, int64_t width, const float* weight, const float* cosine,
              const float* sine, double eps) {
  if (weight) {
    float squares = 0;
    for (int64_t i = 0; i < width; ++i)
      squares += head[i] * head[i];
    const float factor =
        1.0f / std::sqrt(squares / static_cast<float>(width) + static_cast<float>(eps));
    for (int64_t i = 0; i < width; ++i)
      head[i] *= factor * weight[i];
  }
  if (!cosine) return;
  for (int64_t pair = 0; pair < width / 2; ++pair) {
    const float a = head[2 * pair], b = head[2 * pair + 1];
    head[2 * pair] = a * cosine[pair] - b * sine[pair];
    head[2 * pair + 1] = b * cosine[pair] + a * sine[pair];
  }
}

void by_library(at::Tensor& x, const at::Tensor& weight, const at::Tensor& cosine,
                const at::Tensor& sine, double eps) {
  at::Tensor y = x.to(at::kFloat);
  if (weight.defined()) y = y * at::rsqrt(y.square().mean(3, true) + eps) * weight.to(at::kFloat);
  if (cosine.defined()) {
    const at::Tensor a = y.slice(3, 0, y.size(3), 2), b = y.slice(3, 1, y.size(3), 2);
    const at::Tensor c = cosine.to(at::kFloat).unsqueeze(1), s = sine.to(at::kFloat).unsqueeze(1);
    y = at::stack({a * c - b * s, b * c + a * s}, 4).flatten(3);
  }
  x.copy_(y);
}

}  // namespace

void norm_rotate(at::Tensor& x, const at::Tensor& weight, const at::Tensor& cosine,
                 const at::Tensor& sine, double eps) {
  check_shapes(x, weight, cosine, sine);
  if (x.numel() == 0 || (!weight.defined() && !cosine.defined())) return;
  if (const CudaKernels* cuda = cuda_kernels_for(x))
    return norm_rotate_cuda(*cuda, x, weight, cosine, sine, eps);
  if (!x.is_cpu() || !use_cpu_kernels()) return by_library(x, weight, cosine, sine, eps);
  // Half types take the same way in float32, on a copy.
  const auto plain = [](const at::Tensor& t) {
    return t.defined() ? t.to(at::kFloat).contiguous() : t;
  };
  const at::Tensor weights = plain(weight), cosines = plain(cosine), sines = plain(sine);
  const bool direct = x.scalar_type() == at::kFloat;
  const at::Tensor values = direct ? x : plain(x);
  const int64_t rows = x.size(1), heads = x.size(2), width = x.size(3);
  float* data = values.mutable_data_ptr<float>();
  const float* weight_row = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  const float* cosine_rows = cosines.defined() ? cosines.const_data_ptr<float>() : nullptr;
  const float* sine_rows = sines.defined() ? sines.const_data_ptr<float>() : nullptr;
  const auto strides = values.strides();
  parallel_for(0, x.size(0) * rows * heads, kHeadGrain, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / heads % rows, angles = row * (width / 2);
      float* head =
          data + item / (rows * heads) * strides[0] + row * strides[1] + item % heads * strides[2];
      one_head(head, width, weight_row, cosine_rows ? cosine_rows + angles : nullptr,
               sine_rows ? sine_rows + angles : nullptr, eps);
    }
  });
  if (!direct) x.copy_(values);
}

}  // namespace troupe::kernels
