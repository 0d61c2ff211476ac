#include "kernels/elementwise.h"

#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/cuda_library.h"
#include "kernels/parallel.h"
#include "kernels/simd/isa.h"

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
  return x.device().is_cpu() && x.scalar_type() == at::kFloat;
}

at::Tensor contiguous_as(const at::Tensor& x, const at::Tensor& like) {
  return x.to(like.scalar_type()).contiguous();
}

const CudaKernels* kernels_for(const at::Tensor& x) {
  return x.is_cuda() && x.is_contiguous() ? cuda_kernels() : nullptr;
}

}  // namespace

at::Tensor norm_modulate_cuda(const CudaKernels&, const at::Tensor& x, const at::Tensor& scale,
                              const at::Tensor& shift, double eps);
void gate_residual_cuda(const CudaKernels&, at::Tensor& residual, const at::Tensor& x,
                        const at::Tensor& gate);

at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                         double eps) {
  check_modulation("norm_modulate", x, scale, "scale");
  check_modulation("norm_modulate", x, shift, "shift");
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

void gate_residual_(at::Tensor& residual, const at::Tensor& x, const at::Tensor& gate) {
  check_modulation("gate_residual", residual, gate, "gate");
  if (x.sizes() != residual.sizes()) {
    std::ostringstream text;
    text << "[gate_residual] x has shape " << x.sizes() << ", residual has " << residual.sizes();
    throw std::invalid_argument(text.str());
  }
  if (const CudaKernels* cuda = kernels_for(residual))
    return gate_residual_cuda(*cuda, residual, x, gate);
  if (!on_cpu_float(residual) || !residual.is_contiguous()) {
    residual.addcmul_(x, gate.unsqueeze(1));
    return;
  }
  const at::Tensor input = contiguous_as(x, residual), gates = contiguous_as(gate, residual);
  const int64_t rows = residual.size(1), width = residual.size(2);
  float* to = residual.mutable_data_ptr<float>();
  const float* from = input.const_data_ptr<float>();
  const float* gate_rows = gates.const_data_ptr<float>();
  const simd::Table& simd = simd::table();
  parallel_for(0, residual.size(0) * rows, kRowGrain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t item = begin / rows;
      const int64_t count = std::min(end, (item + 1) * rows) - begin;
      simd.gate_residual(to + begin * width, from + begin * width, gate_rows + item * width, count,
                         width);
      begin += count;
    }
  });
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
