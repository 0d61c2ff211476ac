#include "kernels/cuda_device.cuh"

extern "C" const troupe::kernels::CudaKernels* troupe_cuda_kernels() {
  using namespace troupe::kernels;
  static const CudaKernels kernels = {kCudaKernelsVersion,   cuda::norm_modulate, cuda::add_rows,
                                      cuda::norm_rotate,     cuda::kv_push,       cuda::extrapolate,
                                      cuda::merge_attention, cuda::group_moments};
  return &kernels;
}
