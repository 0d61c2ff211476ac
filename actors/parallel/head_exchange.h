#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/parallel/wait_for_work.h"

namespace troupe::actors {

/// Ulysses: ranks that hold all heads of some tokens become ranks that hold all those tokens for
/// some heads, and back. Tokens and heads may be uneven, also none. Source: DeepSpeed-Ulysses
/// (Jacobs et al.).
class HeadExchange {
 public:
  /// `heads` of all ranks together are split over them, remainders first.
  HeadExchange(std::shared_ptr<tensor::Group> group, std::int64_t heads, WaitForWork wait);

  /// Turns qkv [B, own tokens, 3, H, d] into [all tokens, B, 3, own heads, d], contiguous, in the
  /// order of ranks. `tokens`: number of tokens of each rank.
  at::Tensor scatter_heads(const at::Tensor& qkv, const std::vector<std::int64_t>& tokens);
  /// Turns `out` [B, all tokens, own heads, d] into [B, own tokens, H, d].
  at::Tensor gather_heads(const at::Tensor& out, const std::vector<std::int64_t>& tokens);

  std::int64_t own_heads() const { return head_count(group_->rank()); }

 private:
  std::int64_t first_head(int rank) const;
  std::int64_t head_count(int rank) const { return first_head(rank + 1) - first_head(rank); }

  std::shared_ptr<tensor::Group> group_;
  std::int64_t heads_;
  WaitForWork wait_;
};

}  // namespace troupe::actors
