#include "tests/gpu/gpu_kernels.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>

#include "tests/gpu/stand_in/device_memory.h"

extern "C" const troupe::kernels::CudaKernels* troupe_cuda_kernels();

namespace troupe::testing {
namespace {

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = cuda_stand_in::allocate(bytes);
    return {data, data, cuda_stand_in::release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return cuda_stand_in::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

/// Puts tensors of the CPU into the memory that stands for a GPU's, while it lives.
class InDeviceMemory {
 public:
  InDeviceMemory() { set(&own()); }
  ~InDeviceMemory() { set(before_); }
  InDeviceMemory(const InDeviceMemory&) = delete;
  InDeviceMemory& operator=(const InDeviceMemory&) = delete;

 private:
  static void set(c10::Allocator* allocator) { c10::SetCPUAllocator(allocator, 1); }
  static c10::Allocator& own() {
    static DeviceAllocator allocator;
    return allocator;
  }
  c10::Allocator* before_ = c10::GetCPUAllocator();
};

}  // namespace

at::Tensor on_gpu(const at::Tensor& x, at::ScalarType type) {
  const InDeviceMemory here;
  return x.to(type, /*non_blocking=*/false, /*copy=*/true);
}

namespace gpu_kernels {

const kernels::CudaKernels* cuda_kernels() {
  return troupe_cuda_kernels();
}

const kernels::CudaKernels* cuda_kernels_for(const at::Tensor&) {
  return cuda_kernels();
}

at::Tensor norm_modulate(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                         double eps) {
  const InDeviceMemory here;
  return kernels::norm_modulate_cuda(*cuda_kernels(), x, scale, shift, eps);
}

void add(at::Tensor& residual, const at::Tensor& y, const at::Tensor& bias) {
  add_gated(residual, y, {}, bias);
}

void add_gated(at::Tensor& residual, const at::Tensor& y, const at::Tensor& gate,
               const at::Tensor& bias) {
  const InDeviceMemory here;
  kernels::add_rows_cuda(*cuda_kernels(), residual, y, gate, bias);
}

void norm_rotate(at::Tensor& x, const at::Tensor& weight, const at::Tensor& cosine,
                 const at::Tensor& sine, double eps) {
  const InDeviceMemory here;
  kernels::norm_rotate_cuda(*cuda_kernels(), x, weight, cosine, sine, eps);
}

void kv_push(const std::vector<at::Tensor>& versions, const at::Tensor& fresh, int known,
             const std::optional<at::Tensor>& sums) {
  const InDeviceMemory here;
  const int shifts = std::min(known, static_cast<int>(versions.size()) - 1);
  kernels::kv_push_cuda(*cuda_kernels(), versions, fresh, shifts,
                        sums && known >= 2 ? *sums : at::Tensor());
}

void extrapolate_cuda(const kernels::CudaKernels& cuda, const at::Tensor& out, const at::Tensor& x,
                      const at::Tensor& older, const at::Tensor& alpha, int side) {
  const InDeviceMemory here;
  kernels::extrapolate_cuda(cuda, out, x, older, alpha, side);
}

void merge_attention(kernels::PartialAttention& into, const kernels::PartialAttention& other) {
  const InDeviceMemory here;
  kernels::merge_attention_cuda(*cuda_kernels(), into, other);
}

at::Tensor group_moments(const at::Tensor& x, int64_t groups) {
  const InDeviceMemory here;
  return kernels::group_moments_cuda(*cuda_kernels(), x, groups);
}

}  // namespace gpu_kernels
}  // namespace troupe::testing
