#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Attention of the call's tokens over all tokens of the picture: the only thing in a transformer
/// that depends on how the tokens are spread over calls and processes.
class AttentionPort {
 public:
  virtual ~AttentionPort() = default;

  /// q, k, v [B, tokens, H, d] of the tokens of this call, in block `block` of the whole model;
  /// strided views. Returns softmax(q · kᵀ / √d) · v [B, tokens, H, d], contiguous.
  virtual at::Tensor attend(int block, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v) = 0;
};

}  // namespace troupe::models
