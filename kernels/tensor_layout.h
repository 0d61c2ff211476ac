#pragma once
#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// In the dtype of `like`, without gaps; an undefined tensor stays so.
inline at::Tensor contiguous_as(const at::Tensor& x, const at::Tensor& like) {
  return x.defined() ? x.to(like.scalar_type()).contiguous() : x;
}

/// The last dimension without gaps.
inline at::Tensor with_contiguous_rows(const at::Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

}  // namespace troupe::kernels
