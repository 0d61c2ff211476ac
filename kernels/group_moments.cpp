#include "kernels/group_moments.h"

#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/cuda_calls.h"

namespace troupe::kernels {

at::Tensor group_moments(const at::Tensor& x, int64_t groups) {
  if (x.dim() != 4 || x.size(0) != 1 || groups < 1 || x.size(1) % groups != 0 || x.numel() == 0) {
    std::ostringstream text;
    text << "[group_moments] " << groups << " groups of " << x.sizes() << ", not [1, C, h, w]";
    throw std::invalid_argument(text.str());
  }
  if (const CudaKernels* cuda = cuda_kernels_for(x)) return group_moments_cuda(*cuda, x, groups);
  const auto [variance, mean] =
      at::var_mean(x.contiguous().view({groups, -1}).to(at::kDouble), at::IntArrayRef{1}, 0);
  return at::stack({mean, variance});
}

}  // namespace troupe::kernels
