#include "kernels/cuda_calls.h"

#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "kernels/tensor_layout.h"

namespace troupe::kernels {

namespace {

CudaDtype cuda_dtype(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kFloat:
      return CudaDtype::kFloat32;
    case at::kBFloat16:
      return CudaDtype::kBFloat16;
    case at::kHalf:
      return CudaDtype::kFloat16;
    default:
      throw std::invalid_argument(std::string("[kernels] no CUDA kernel for ") +
                                  c10::toString(x.scalar_type()));
  }
}

/// Null where there are no streams: a table of kernels for the CPU.
void* stream_of(const at::Tensor& x) {
  if (x.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(x.device().type()).getStream(x.device()).native_handle();
}

void check(int error, const char* who) {
  if (error != 0)
    throw std::runtime_error(std::string("[") + who + "] CUDA error " + std::to_string(error));
}

const void* data_or_null(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr() : nullptr;
}

CudaHeads heads_of(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

}  // namespace

const CudaKernels* cuda_kernels_for(const at::Tensor& x) {
  const bool has_type = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16 ||
                        x.scalar_type() == at::kHalf;
  return x.is_cuda() && has_type ? cuda_kernels() : nullptr;
}

at::Tensor norm_modulate_cuda(const CudaKernels& cuda, const at::Tensor& x, const at::Tensor& scale,
                              const at::Tensor& shift, double eps) {
  const c10::DeviceGuard device(x.device());
  at::Tensor out = at::empty_like(x);
  const at::Tensor scales = contiguous_as(scale, x), shifts = contiguous_as(shift, x);
  check(cuda.norm_modulate(cuda_dtype(x), x.const_data_ptr(), scales.const_data_ptr(),
                           shifts.const_data_ptr(), out.mutable_data_ptr(), x.size(0), x.size(1),
                           x.size(2), static_cast<float>(eps), stream_of(x)),
        "norm_modulate");
  return out;
}

void add_rows_cuda(const CudaKernels& cuda, at::Tensor& residual, const at::Tensor& y,
                   const at::Tensor& gate, const at::Tensor& bias) {
  const c10::DeviceGuard device(residual.device());
  const at::Tensor input = contiguous_as(y, residual), gates = contiguous_as(gate, residual),
                   biases = contiguous_as(bias, residual);
  const int64_t width = residual.size(-1), batch = gate.defined() ? residual.size(0) : 1;
  check(cuda.add_rows(cuda_dtype(residual), residual.mutable_data_ptr(), input.const_data_ptr(),
                      data_or_null(gates), data_or_null(biases), batch,
                      residual.numel() / width / batch, width, stream_of(residual)),
        "add_rows");
}

void norm_rotate_cuda(const CudaKernels& cuda, at::Tensor& x, const at::Tensor& weight,
                      const at::Tensor& cosine, const at::Tensor& sine, double eps) {
  const c10::DeviceGuard device(x.device());
  const at::Tensor weights = contiguous_as(weight, x);
  const auto angles = [](const at::Tensor& t) {
    return t.defined() ? t.to(at::kFloat).contiguous() : t;
  };
  const at::Tensor cosines = angles(cosine), sines = angles(sine);
  check(cuda.norm_rotate(cuda_dtype(x), heads_of(x), data_or_null(weights),
                         static_cast<const float*>(data_or_null(cosines)),
                         static_cast<const float*>(data_or_null(sines)), x.size(0), x.size(1),
                         x.size(2), x.size(3), static_cast<float>(eps), stream_of(x)),
        "norm_rotate");
}

void kv_push_cuda(const CudaKernels& cuda, const std::vector<at::Tensor>& versions,
                  const at::Tensor& fresh_in, int shifts, const at::Tensor& sums) {
  const c10::DeviceGuard device(fresh_in.device());
  const at::Tensor fresh = with_contiguous_rows(fresh_in);
  CudaPush push{};
  push.dtype = cuda_dtype(fresh);
  for (size_t i = 0; i < versions.size(); ++i)
    push.versions[i] = versions[i].mutable_data_ptr();
  push.shifts = shifts;
  push.fresh = fresh.const_data_ptr();
  for (int i = 0; i < 4; ++i)
    push.strides[i] = fresh.stride(i);
  push.rows = fresh.size(0);
  push.batch = fresh.size(1);
  push.heads = fresh.size(3);
  push.width = fresh.size(4);
  at::Tensor partial;
  if (sums.defined()) {
    partial = at::empty({cuda_push_blocks(push.rows), push.batch * 4}, sums.options());
    push.sums = sums.mutable_data_ptr<double>();
    push.partial = partial.mutable_data_ptr<double>();
  }
  check(cuda.kv_push(push, stream_of(fresh)), "kv_push");
}

void extrapolate_cuda(const CudaKernels& cuda, const at::Tensor& out, const at::Tensor& x_in,
                      const at::Tensor& older_in, const at::Tensor& alpha, int side) {
  const c10::DeviceGuard device(out.device());
  const at::Tensor x = with_contiguous_rows(x_in), older = with_contiguous_rows(older_in);
  const at::Tensor factors = alpha.to(at::kFloat).contiguous();
  check(cuda.extrapolate(cuda_dtype(out), heads_of(out), heads_of(x), heads_of(older),
                         factors.const_data_ptr<float>(), side, x.size(0), x.size(1), x.size(2),
                         x.size(3), stream_of(out)),
        "extrapolate");
}

void merge_attention_cuda(const CudaKernels& cuda, PartialAttention& into,
                          const PartialAttention& other) {
  const c10::DeviceGuard device(into.out.device());
  const at::Tensor other_out = other.out.contiguous(), other_sums = other.log_sum_exp.contiguous();
  check(cuda.merge_attention(cuda_dtype(into.out), into.out.mutable_data_ptr(),
                             into.log_sum_exp.mutable_data_ptr<float>(), cuda_dtype(other_out),
                             other_out.const_data_ptr(), other_sums.const_data_ptr<float>(),
                             into.log_sum_exp.numel(), into.out.size(3), stream_of(into.out)),
        "merge_attention");
}

at::Tensor group_moments_cuda(const CudaKernels& cuda, const at::Tensor& x, int64_t groups) {
  const c10::DeviceGuard device(x.device());
  const bool channels_last = !x.is_contiguous() && x.is_contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor input = channels_last ? x : x.contiguous();
  const auto wide = x.options().dtype(at::kDouble);
  const at::Tensor partial = at::empty({groups, kCudaMomentBlocks, 2}, wide);
  at::Tensor moments = at::empty({2, groups}, wide);
  check(cuda.group_moments(cuda_dtype(x), input.const_data_ptr(), channels_last, x.size(1),
                           x.size(2) * x.size(3), groups, partial.mutable_data_ptr<double>(),
                           moments.mutable_data_ptr<double>(), stream_of(x)),
        "group_moments");
  return moments;
}

}  // namespace troupe::kernels
