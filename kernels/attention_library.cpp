#include "kernels/attention_library.h"

#include <tuple>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "kernels/cuda_calls.h"

namespace troupe::kernels {

namespace {

enum class Side : int64_t { kKeys, kValues };

/// All runs' keys or values as one tensor [B, keys, H, d].
at::Tensor joined(const std::vector<KeyValueRun>& runs, Side side) {
  const auto now = [&](const KeyValueRun& run) { return side == Side::kKeys ? run.k : run.v; };
  if (runs.size() == 1 && !runs[0].older_k.defined()) return now(runs[0]);
  auto shape = now(runs[0]).sizes().vec();
  shape[1] = 0;
  for (const KeyValueRun& run : runs)
    shape[1] += run.k.size(1);
  at::Tensor all = at::empty(shape, now(runs[0]).options());
  int64_t first = 0;
  for (const KeyValueRun& run : runs) {
    const at::Tensor rows = now(run);
    at::Tensor target = all.slice(1, first, first + rows.size(1));
    first += rows.size(1);
    if (!run.older_k.defined()) {
      target.copy_(rows);
      continue;
    }
    const at::Tensor older = side == Side::kKeys ? run.older_k : run.older_v;
    if (const CudaKernels* cuda = cuda_kernels_for(target)) {
      extrapolate_cuda(*cuda, target, rows, older, run.alpha, static_cast<int>(side));
      continue;
    }
    const at::Tensor factor =
        run.alpha.select(1, static_cast<int64_t>(side)).to(rows.options()).view({-1, 1, 1, 1});
    at::addcmul_out(target, rows, rows - older, factor);
  }
  return all;
}

/// q, k and v as [B, H, n, d], the last dimension padded with zeros to what the fused kernels take.
struct Heads {
  at::Tensor q, k, v;

  Heads(const at::Tensor& q_in, const std::vector<KeyValueRun>& runs)
      : q(padded(q_in)),
        k(padded(joined(runs, Side::kKeys))),
        v(padded(joined(runs, Side::kValues))) {}

  static at::Tensor padded(const at::Tensor& x) {
    const int64_t rest = x.size(3) % 8;
    const at::Tensor heads = x.transpose(1, 2);
    return x.is_cuda() && rest != 0 ? at::constant_pad_nd(heads, {0, 8 - rest}) : heads;
  }
};

std::tuple<at::Tensor, at::Tensor> explicit_softmax(const Heads& heads, double scale) {
  const auto wide = [](const at::Tensor& x) {
    return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
  };
  const at::Tensor scores = at::matmul(wide(heads.q) * scale, wide(heads.k).transpose(-1, -2));
  const at::Tensor sums = at::logsumexp(scores, -1);
  const at::Tensor weights = (scores - sums.unsqueeze(-1)).exp_();
  return {at::matmul(weights, wide(heads.v)), sums};
}

/// Output [B, H, Nq, d] and log-sum-exp [B, H, Nq] by the fastest kernel that gives both.
std::tuple<at::Tensor, at::Tensor> fused(const Heads& heads, double scale) {
  const auto& [q, k, v] = heads;
  const auto backend =
      static_cast<at::SDPBackend>(at::_fused_sdp_choice(q, k, v, std::nullopt, 0.0, false, scale));
  const bool half = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  if (q.is_cpu()) {
    if (backend == at::SDPBackend::flash_attention)
      return at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false, std::nullopt,
                                                             scale);
    return explicit_softmax(heads, scale);
  }
  if (half &&
      (backend == at::SDPBackend::flash_attention || backend == at::SDPBackend::cudnn_attention)) {
    const auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, false, false, scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  if (q.is_cuda() && backend != at::SDPBackend::math) {
    const auto result =
        at::_scaled_dot_product_efficient_attention(q, k, v, std::nullopt, true, 0.0, false, scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  return explicit_softmax(heads, scale);
}

/// cuDNN makes a plan, code included, for every number of keys that it meets, and texts differ in
/// theirs from prompt to prompt. The other fused kernels take any number as they are, and with few
/// keys they cost no more.
class PlansOfCudnn {
 public:
  explicit PlansOfCudnn(int64_t keys) {
    constexpr int64_t kFewKeys = 512;
    if (keys <= kFewKeys) at::globalContext().setSDPUseCuDNN(false);
  }
  ~PlansOfCudnn() { at::globalContext().setSDPUseCuDNN(before_); }
  PlansOfCudnn(const PlansOfCudnn&) = delete;
  PlansOfCudnn& operator=(const PlansOfCudnn&) = delete;

 private:
  bool before_ = at::globalContext().userEnabledCuDNNSDP();
};

}  // namespace

at::Tensor library_attention(const at::Tensor& q, const std::vector<KeyValueRun>& runs,
                             double scale, const at::Tensor& key_bias) {
  const at::Tensor k = joined(runs, Side::kKeys), v = joined(runs, Side::kValues);
  const PlansOfCudnn plans(k.size(1));
  std::optional<at::Tensor> mask;
  if (key_bias.defined())
    mask = key_bias.to(q.scalar_type())
               .unsqueeze(1)
               .unsqueeze(1)
               .expand({q.size(0), q.size(2), q.size(1), k.size(1)});
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          mask, 0.0, false, scale)
      .transpose(1, 2)
      .contiguous();
}

PartialAttention library_attention_part(const at::Tensor& q, const std::vector<KeyValueRun>& runs,
                                        double scale) {
  const auto [out, sums] = fused(Heads(q, runs), scale);
  // Some kernels pad the queries of their sums to a whole block.
  return {out.slice(3, 0, q.size(3)).transpose(1, 2).to(q.scalar_type()).contiguous(),
          sums.slice(2, 0, q.size(1)).transpose(1, 2).to(at::kFloat).contiguous()};
}

}  // namespace troupe::kernels
