#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

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

/// Adds up what shards of one matrix product computed: the only thing that splitting weights over
/// processes changes.
class TensorParallelPort {
 public:
  virtual ~TensorParallelPort() = default;

  /// Sums `partial`, contiguous, over all shards, in place. Every shard gets the same bits.
  virtual void sum(at::Tensor& partial) = 0;
  /// Puts the largest of all shards' values, contiguous, in place of each.
  virtual void largest(at::Tensor& values) = 0;
};

/// The weights are whole.
class WholeWeights final : public TensorParallelPort {
 public:
  void sum(at::Tensor&) override {}
  void largest(at::Tensor&) override {}
};

/// The call holds all tokens: nothing is kept, nothing is fetched.
class LocalAttention : public AttentionPort {
 public:
  /// `text` [B, T], if it is defined, is false for those of the first T tokens that are padding,
  /// which nobody attends to.
  explicit LocalAttention(at::Tensor text = {}) : text_(std::move(text)) {}
  at::Tensor attend(int slot, const at::Tensor& qkv, Attend to = Attend::everything) override;

 private:
  at::Tensor text_;
};

}  // namespace troupe::models
