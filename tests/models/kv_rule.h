#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <map>
#include <vector>

#include "models/dit/kv_store.h"

namespace troupe::models::testing {

/// Largest difference over the reference's largest value; 0 where there is nothing to compare.
inline double apart(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() != want.sizes()) return INFINITY;
  if (want.numel() == 0) return 0;
  const at::Tensor wide = want.to(at::kDouble);
  return ((got.to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

/// softmax(q · kᵀ / √d) · v of q [B, n, H, d] in float64.
inline at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const auto heads = [](const at::Tensor& x) { return x.to(at::kDouble).transpose(1, 2); };
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = at::matmul(heads(q), heads(k).transpose(-1, -2)) * scale;
  return at::matmul(scores.softmax(-1), heads(v)).transpose(1, 2);
}

/// Rule for what a patch attends to, by docs/methods.md and models/dit/README.md, in float64 and
/// with every value kept for good: one process, one block, no thought of speed.
class KvRule {
 public:
  KvRule(KvStore::Freshness freshness, bool predicts, int64_t tokens)
      : freshness_(freshness), predicts_(predicts), past_(tokens) {}

  struct Seen {
    at::Tensor k, v;           // [B, seen, H, d]
    at::Tensor factors;        // [B, 2] float64
    int64_t extrapolated = 0;  // rows
  };

  /// kv [B, n, 2, H, d] of the tokens of `patch`, computed in `step`.
  Seen see(int step, TokenRun patch, const at::Tensor& kv) {
    if (freshness_ == KvStore::Freshness::step_before || step != sums_step_) {
      above_ = below_ = at::zeros({kv.size(0), 2}, at::kDouble);
      sums_step_ = step;
    }
    for (int64_t token = patch.begin; token < patch.end; ++token) {
      auto& past = past_[token];
      const at::Tensor x = kv.select(1, token - patch.begin).to(at::kDouble);  // [B, 2, H, d]
      if (past.size() >= 2) {
        const at::Tensor x1 = past[past.size() - 1].x, change = x1 - past[past.size() - 2].x;
        above_ = above_ + ((x - x1) * change).sum({2, 3});
        below_ = below_ + (change * change).sum({2, 3});
      }
      past.push_back({step, x});
    }
    Seen seen;
    seen.factors = at::where(below_ > 0, above_ / below_, at::zeros_like(above_)).clamp(0, 1);
    std::vector<at::Tensor> rows;
    for (int64_t token = 0; token < static_cast<int64_t>(past_.size()); ++token) {
      const auto& past = past_[token];
      const bool own = patch.begin <= token && token < patch.end;
      auto last = static_cast<int64_t>(past.size()) - 1;
      const bool before = freshness_ == KvStore::Freshness::step_before && !own;
      if (before && last >= 0 && past[last].step == step) --last;
      if (last < 0) continue;
      at::Tensor row = past[last].x;
      if (predicts_ && past[last].step != step && last >= 1) {
        row = row + seen.factors.view({-1, 2, 1, 1}) * (row - past[last - 1].x);
        ++seen.extrapolated;
      }
      rows.push_back(row);
    }
    const at::Tensor all = at::stack(rows, 1);
    seen.k = all.select(2, 0);
    seen.v = all.select(2, 1);
    return seen;
  }

  /// Same as `see` for qkv [B, n, 3, H, d], attended to.
  at::Tensor attend(int step, TokenRun patch, const at::Tensor& qkv) {
    const Seen seen = see(step, patch, qkv.slice(2, 1, 3));
    return plain_attention(qkv.select(2, 0), seen.k, seen.v);
  }

 private:
  struct Value {
    int step;
    at::Tensor x;
  };
  KvStore::Freshness freshness_;
  bool predicts_;
  std::vector<std::vector<Value>> past_;  // by token, oldest first
  at::Tensor above_, below_;
  int sums_step_ = -1;
};

/// q, k and v [B, T, 3, H, d] that go on from step to step as a sampler's do: a base, a drift that
/// turns slowly, and some noise.
class DriftingTokens {
 public:
  DriftingTokens(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim)
      : value_(at::randn({batch, tokens, 3, heads, head_dim})),
        drift_(at::randn_like(value_) * 0.3) {}
  at::Tensor next() {
    const at::Tensor now = value_;
    value_ = value_ + drift_ + at::randn_like(value_) * 0.1;
    drift_ = drift_ * 0.6 + at::randn_like(value_) * 0.05;
    return now;
  }

 private:
  at::Tensor value_, drift_;
};

}  // namespace troupe::models::testing
