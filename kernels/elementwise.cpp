#include "kernels/elementwise.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "kernels/cpu_kernels.h"
#include "kernels/cuda_calls.h"
#include "kernels/simd/isa.h"
#include "kernels/tensor_layout.h"

namespace troupe::kernels {
namespace {

constexpr int64_t kRowGrain = 16;

void check_modulation(const char* who, const at::Tensor& x, const at::Tensor& factor,
                      const char* name) {
  if (x.dim() == 3 && factor.dim() == 2 && factor.size(0) == x.size(0) &&
      factor.size(1) == x.size(2))
    return;
  std::ostringstream text;
  text << "[" << who << "] " << name << " has shape " << factor.sizes() << ", x has " << x.sizes();
  throw std::invalid_argument(text.str());
}

bool on_cpu_float(const at::Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == at::kFloat && use_cpu_kernels();
}

const CudaKernels* kernels_for(const at::Tensor& x) {
  return x.is_contiguous() ? cuda_kernels_for(x) : nullptr;
}

void check_summand(const char* who, const at::Tensor& residual, const at::Tensor& y,
                   const at::Tensor& bias) {
  const bool agree = residual.dim() >= 1 && y.sizes() == residual.sizes() &&
                     (!bias.defined() || (bias.dim() == 1 && bias.size(0) == residual.size(-1)));
  if (agree) return;
  std::ostringstream text;
  text << "[" << who << "] y has shape " << y.sizes() << ", residual has " << residual.sizes();
  if (bias.defined()) text << ", bias has " << bias.sizes();
  throw std::invalid_argument(text.str());
}

/// residual += gate · (y + bias) with gate and bias undefined or of rows' width.
void add_rows(at::Tensor& residual, const at::Tensor& y, const at::Tensor& gate,
              const at::Tensor& bias) {
  const at::Tensor input = contiguous_as(y, residual);
  const at::Tensor gates = gate.defined() ? contiguous_as(gate, residual) : gate;
  const at::Tensor biases = bias.defined() ? contiguous_as(bias, residual) : bias;
  const int64_t width = residual.size(-1), all = residual.numel() / width;
  const int64_t rows = gates.defined() ? residual.size(1) : all;
  float* to = residual.mutable_data_ptr<float>();
  const float* from = input.const_data_ptr<float>();
  const float* gate_rows = gates.defined() ? gates.const_data_ptr<float>() : nullptr;
  const float* bias_row = biases.defined() ? biases.const_data_ptr<float>() : nullptr;
  const simd::Table& simd = simd::table();
  parallel_for(0, all, kRowGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t item = begin / rows;
      const int64_t count = std::min(end, (item + 1) * rows) - begin;
      simd.add_rows(to + begin * width, from + begin * width, bias_row,
                    gate_rows ? gate_rows + item * width : nullptr, count, width);
      begin += count;
    }
  });
}

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

at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                         double eps) {
  check_modulation("norm_modulate", x, scale, "scale");
  check_modulation("norm_modulate", x, shift, "shift");
  if (x.numel() == 0) return at::empty_like(x);
  if (const CudaKernels* cuda = kernels_for(x))
    return norm_modulate_cuda(*cuda, x, scale, shift, eps);
  if (!on_cpu_float(x)) {
    return at::layer_norm(x, {x.size(2)}, {}, {}, eps)
        .mul_(1 + scale.unsqueeze(1))
        .add_(shift.unsqueeze(1));
  }
  const at::Tensor input = x.contiguous();
  const at::Tensor scales = contiguous_as(scale, x), shifts = contiguous_as(shift, x);
  at::Tensor out = at::empty_like(input);
  const int64_t rows = x.size(1), width = x.size(2);
  const float* from = input.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const float* scale_rows = scales.const_data_ptr<float>();
  const float* shift_rows = shifts.const_data_ptr<float>();
  const simd::Table& simd = simd::table();
  parallel_for(0, x.size(0) * rows, kRowGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t item = begin / rows;
      const int64_t count = std::min(end, (item + 1) * rows) - begin;
      simd.norm_modulate(from + begin * width, count, width, scale_rows + item * width,
                         shift_rows + item * width, static_cast<float>(eps), to + begin * width);
      begin += count;
    }
  });
  return out;
}

void add(at::Tensor& residual, const at::Tensor& y, const at::Tensor& bias) {
  check_summand("add", residual, y, bias);
  if (residual.numel() == 0) return;
  if (on_cpu_float(residual) && residual.is_contiguous()) return add_rows(residual, y, {}, bias);
  if (const CudaKernels* cuda = kernels_for(residual))
    return add_rows_cuda(*cuda, residual, y, {}, bias);
  residual.add_(y);
  if (bias.defined()) residual.add_(bias);
}

void add_gated(at::Tensor& residual, const at::Tensor& y, const at::Tensor& gate,
               const at::Tensor& bias) {
  check_modulation("add_gated", residual, gate, "gate");
  check_summand("add_gated", residual, y, bias);
  if (residual.numel() == 0) return;
  if (on_cpu_float(residual) && residual.is_contiguous()) return add_rows(residual, y, gate, bias);
  if (const CudaKernels* cuda = kernels_for(residual))
    return add_rows_cuda(*cuda, residual, y, gate, bias);
  const at::Tensor summand = bias.defined() ? y + bias : y;
  residual.addcmul_(summand, gate.unsqueeze(1));
}

void gelu_tanh_(at::Tensor& x) {
  if (!on_cpu_float(x) || !x.is_contiguous()) {
    at::gelu_(x, "tanh");
    return;
  }
  float* data = x.mutable_data_ptr<float>();
  const simd::Table& simd = simd::table();
  parallel_for(0, x.numel(), 4096,
               [&](int64_t begin, int64_t end) { simd.gelu(data + begin, end - begin); });
}

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
