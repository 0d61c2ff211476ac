#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::models {

/// Tokens that the tokens of a call attend to.
enum class Attend {
  everything,  ///< all tokens: those of the picture, and of joint models the text's
  picture,     ///< the picture's tokens, by the picture's tokens alone
};

/// Attention of the call's tokens over all tokens of the picture: the only thing in a transformer
/// that depends on how the tokens are spread over calls and processes. In joint models the text's
/// tokens stand before the picture's; who computes them, and when, is not the model's business.
class AttentionPort {
 public:
  virtual ~AttentionPort() = default;

  /// qkv [B, tokens, 3, H, d] of the tokens of this call, in attention `slot` of the whole model
  /// (where each block has one, its number); any strides as long as the last dimension is
  /// contiguous; tokens may be 0. Returns softmax(q · kᵀ / √d) · v [B, tokens, H, d], contiguous.
  virtual at::Tensor attend(int slot, const at::Tensor& qkv, Attend to = Attend::everything) = 0;
};

}  // namespace troupe::models
