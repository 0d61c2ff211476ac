#pragma once
#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// Returns `x` in the dtype of `like`, without gaps; an undefined tensor stays undefined.
inline at::Tensor contiguous_as(const at::Tensor& x, const at::Tensor& like) {
  return x.defined() ? x.to(like.scalar_type()).contiguous() : x;
}

/// Returns `x` with its last dimension without gaps.
inline at::Tensor with_contiguous_rows(const at::Tensor& x) {
  return x.stride(-1) == 1 || x.size(-1) == 1 ? x : x.contiguous();
}

}  // namespace troupe::kernels
