#include "kernels/elementwise.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/cpu_kernels.h"
#include "kernels/cuda_calls.h"
#include "kernels/parallel.h"
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

}  // namespace troupe::kernels
