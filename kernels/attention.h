#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace troupe::kernels {

/// Some of the keys and values that queries attend to. Strided views are taken as they are where
/// the last dimension is contiguous; nothing is copied beside the kernel's own packing.
struct KeyValueRun {
  at::Tensor k, v;  ///< [B, n, H, d], n may be 0
  /// Undefined, or of k's shape: the run is then used as k + alpha · (k − older_k), and v alike.
  at::Tensor older_k, older_v;
  at::Tensor alpha;  ///< [B, 2], factors of K and V for each batch item
};

/// softmax(scale · q · kᵀ) · v for every head, over the keys of all runs together.
/// q [B, Nq, H, d]; returns [B, Nq, H, d], contiguous, in q's dtype. Any size may be 0, but
/// std::invalid_argument where there are queries and no keys, or where shapes or dtypes disagree.
/// float32 on CPU runs on own blocked code where the CPU has AVX2, AVX-512 or NEON; everything
/// else on ATen's scaled_dot_product_attention over the joined runs.
at::Tensor attention(const at::Tensor& q, const std::vector<KeyValueRun>& runs, double scale);

/// The same for one run of k and v [B, Nk, H, d]. key_bias [B, Nk] is added to the scores of a key,
/// for all queries and heads; a query whose keys all have −inf gets 0.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                     const std::optional<at::Tensor>& key_bias = std::nullopt);

/// Attention over some of the keys, to be joined with that over the others.
struct PartialAttention {
  at::Tensor out;          ///< [B, Nq, H, d], normalised over its own keys
  at::Tensor log_sum_exp;  ///< [B, Nq, H] float32, ln Σ exp(scale · q · k)
};

/// Same as attention(), but over some of the keys; without any keys `out` is 0 and `log_sum_exp`
/// −inf.
PartialAttention attention_part(const at::Tensor& q, const std::vector<KeyValueRun>& runs,
                                double scale);

/// Makes `into` the attention over its own keys and those of `other`, which must be different ones.
/// Works in place, computed in float32. `into.out` may be float32 and `other.out` of a half type,
/// so that many parts add up without being rounded in between. A side without keys is ignored,
/// whatever values its `out` has. Throws std::invalid_argument if shapes disagree.
void merge_attention(PartialAttention& into, const PartialAttention& other);

}  // namespace troupe::kernels
