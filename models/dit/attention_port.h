#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Attention of the call's tokens over all tokens of the picture: the only thing in a transformer
/// that depends on how the tokens are spread over calls and processes.
class AttentionPort {
 public:
  virtual ~AttentionPort() = default;

  /// qkv [B, tokens, 3, H, d] of the tokens of this call, in block `block` of the whole model; any
  /// strides as long as the last dimension is contiguous; tokens may be 0. Returns
  /// softmax(q · kᵀ / √d) · v [B, tokens, H, d], contiguous.
  virtual at::Tensor attend(int block, const at::Tensor& qkv) = 0;
};

}  // namespace troupe::models
