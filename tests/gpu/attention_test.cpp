// Attention over runs of keys on a GPU beside the CPU's, and what it sees of extrapolated K,V.
#include "kernels/attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tests/gpu/gpu_kernels.h"
#include "tests/gpu/nearness.h"

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using kernels::KeyValueRun;
using kernels::PartialAttention;

namespace {

/// K and V that attention sees of a run of one row, [B, 1, H, d] each: over one key the softmax is
/// 1, so the output is V, and the log-sum-exp of the i-th unit vector is K's i-th number.
std::pair<at::Tensor, at::Tensor> seen(const KeyValueRun& run) {
  const int64_t batch = run.k.size(0), heads = run.k.size(2), width = run.k.size(3);
  const at::Tensor units = at::eye(width, run.k.options()).view({1, width, 1, width});
  const auto part =
      kernels::attention_part(units.expand({batch, width, heads, width}).contiguous(), {run}, 1.0);
  return {part.log_sum_exp.transpose(1, 2).unsqueeze(1), part.out.slice(1, 0, 1)};
}

void check_seen(at::Device device) {
  at::manual_seed(21);
  for (const auto type : kKernelTypes) {
    for (const int64_t width : {64, 72}) {
      CAPTURE(width);
      // As K,V stores hold them: [n, B, 2, H, d].
      const at::Tensor newest = at::randn({1, 3, 2, 5, width}).to(type),
                       older = at::randn({1, 3, 2, 5, width}).to(type), alpha = at::rand({3, 2});
      const auto side = [](const at::Tensor& t, int i) { return t.select(2, i).transpose(0, 1); };
      const at::Tensor there = newest.to(device), before = older.to(device);
      const auto [k, v] = seen(
          {side(there, 0), side(there, 1), side(before, 0), side(before, 1), alpha.to(device)});
      CHECK(apart(k, extrapolated(side(newest, 0), side(older, 0), alpha, 0)) < bound(type));
      CHECK(apart(v, extrapolated(side(newest, 1), side(older, 1), alpha, 1)) < bound(type));
    }
  }
}

}  // namespace

TEST_CASE("attention on a CPU sees extrapolated K,V as they are defined") {
  check_seen(at::kCPU);
}

TEST_CASE("attention on a GPU sees the same") {
  TROUPE_NEEDS_GPU();
  check_seen(*gpu());
}

TEST_CASE("attention over runs, some of them extrapolated") {
  TROUPE_NEEDS_GPU();
  at::manual_seed(6);
  for (const auto type : kKernelTypes) {
    for (const int64_t width : {64, 72}) {
      const at::Tensor q = exact({2, 37, 4, width}, type);
      std::vector<KeyValueRun> runs, device_runs;
      for (const int64_t rows : {19, 0, 45}) {
        const at::Tensor store = exact({rows, 2, 2, 4, width}, type),
                         older = exact({rows, 2, 2, 4, width}, type), alpha = at::rand({2, 2});
        const auto side = [](const at::Tensor& t, int i) { return t.select(2, i).transpose(0, 1); };
        KeyValueRun run{side(store, 0), side(store, 1), {}, {}, {}};
        const at::Tensor device_store = on_gpu(store, type), device_older = on_gpu(older, type);
        KeyValueRun device_run{side(device_store, 0), side(device_store, 1), {}, {}, {}};
        if (rows != 19) {
          run.older_k = side(older, 0);
          run.older_v = side(older, 1);
          run.alpha = alpha;
          device_run.older_k = side(device_older, 0);
          device_run.older_v = side(device_older, 1);
          device_run.alpha = alpha.to(*gpu());
        }
        runs.push_back(run);
        device_runs.push_back(device_run);
      }
      const double scale = 1 / std::sqrt(static_cast<double>(width));
      const at::Tensor device_q = on_gpu(q, type);
      const double allowed = type == at::kFloat ? 1e-4 : 3e-2;
      CHECK(apart(kernels::attention(device_q, device_runs, scale),
                  kernels::attention(q, runs, scale)) < allowed);
      const PartialAttention want = kernels::attention_part(q, runs, scale);
      const PartialAttention got = kernels::attention_part(device_q, device_runs, scale);
      CHECK(apart(got.out, want.out) < allowed);
      CHECK(apart(got.log_sum_exp, want.log_sum_exp) < allowed);
    }
  }
}
