#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/errors.h"

namespace troupe::kernels::testing {

struct Exact {
  at::Tensor out, log_sum_exp;
};

inline at::Tensor extrapolated(const at::Tensor& now, const at::Tensor& older,
                               const at::Tensor& alpha) {
  const at::Tensor rows = now.to(at::kDouble);
  if (!older.defined()) return rows;
  return rows + alpha.to(at::kDouble).view({-1, 1, 1, 1}) * (rows - older.to(at::kDouble));
}

/// Attention over runs in float64, and the logarithms of its sums.
inline Exact exact(const at::Tensor& q, const std::vector<KeyValueRun>& runs, double scale) {
  std::vector<at::Tensor> keys, values;
  for (const KeyValueRun& run : runs) {
    const bool moved = run.older_k.defined();
    keys.push_back(extrapolated(run.k, run.older_k, moved ? run.alpha.select(1, 0) : run.alpha));
    values.push_back(extrapolated(run.v, run.older_v, moved ? run.alpha.select(1, 1) : run.alpha));
  }
  const at::Tensor k = at::cat(keys, 1).transpose(1, 2), v = at::cat(values, 1).transpose(1, 2);
  const at::Tensor scores =
      at::matmul(q.to(at::kDouble).transpose(1, 2), k.transpose(-1, -2)) * scale;
  return {at::matmul(scores.softmax(-1), v).transpose(1, 2),
          at::logsumexp(scores, -1).transpose(1, 2)};
}

inline double distance(const at::Tensor& got, const at::Tensor& want) {
  return (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
}

/// Runs as the K,V store holds them (token first, seen through permute) and as a projection makes
/// them, with and without older versions.
class RunMaker {
 public:
  RunMaker(int64_t batch, int64_t heads, int64_t width, at::ScalarType dtype, unsigned seed)
      : batch_(batch), heads_(heads), width_(width), dtype_(dtype), random_(seed) {}

  int64_t below(int64_t limit) { return static_cast<int64_t>(random_() % limit); }

  KeyValueRun run(int64_t rows) {
    KeyValueRun made;
    const bool stored = below(2) == 0;
    const auto [k, v] = stored ? from_store(rows) : from_projection(rows);
    made.k = k;
    made.v = v;
    if (below(2) == 0) return made;
    const auto [older_k, older_v] = below(2) == 0 ? from_store(rows) : from_projection(rows);
    made.older_k = older_k;
    made.older_v = older_v;
    made.alpha = at::rand({batch_, 2});
    if (below(3) == 0) made.alpha.select(1, 0).zero_();
    return made;
  }

  std::vector<KeyValueRun> runs(int64_t count, int64_t most_rows) {
    std::vector<KeyValueRun> made;
    for (int64_t i = 0; i < count; ++i)
      made.push_back(run(below(5) == 0 ? 0 : below(most_rows)));
    made.push_back(run(1 + below(most_rows)));
    return made;
  }

 private:
  using Pair = std::pair<at::Tensor, at::Tensor>;
  at::Tensor random(at::IntArrayRef shape) { return (at::randn(shape) * 1.5).to(dtype_); }

  Pair from_store(int64_t rows) {
    const at::Tensor store = random({rows + 5, batch_, 2, heads_, width_});
    const at::Tensor own = store.slice(0, 2, 2 + rows).permute({1, 0, 2, 3, 4});
    return {own.select(2, 0), own.select(2, 1)};
  }
  Pair from_projection(int64_t rows) {
    const at::Tensor qkv = random({batch_, rows, 3, heads_, width_});
    return {qkv.select(2, 1), qkv.select(2, 2)};
  }

  int64_t batch_, heads_, width_;
  at::ScalarType dtype_;
  std::mt19937 random_;
};

}  // namespace troupe::kernels::testing
