#include "kernels/attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "kernels/cpu_kernels.h"
#include "kernels/cuda_calls.h"
#include "kernels/simd/isa.h"
#include "kernels/tensor_layout.h"

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

/// Returns attention through ATen, for what our own code does not cover. Shapes have been checked,
/// and no dimension is 0; key_bias may be undefined.
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

[[noreturn]] void refuse(const at::Tensor& q, const KeyValueRun& run, const at::Tensor& bias) {
  std::ostringstream text;
  const auto describe = [&](const char* name, const at::Tensor& x) {
    if (x.defined()) text << name << x.sizes() << ' ' << c10::toString(x.scalar_type());
  };
  describe("[attention] q ", q);
  describe(", k ", run.k);
  describe(", v ", run.v);
  describe(", older_k ", run.older_k);
  describe(", older_v ", run.older_v);
  describe(", alpha ", run.alpha);
  describe(", key_bias ", bias);
  throw std::invalid_argument(text.str());
}

bool fits(const at::Tensor& q, const KeyValueRun& run) {
  const auto like_keys = [&](const at::Tensor& x) {
    return x.defined() && x.sizes() == run.k.sizes() && x.scalar_type() == q.scalar_type() &&
           x.device() == q.device();
  };
  if (q.dim() != 4 || !run.k.defined() || run.k.dim() != 4 || !like_keys(run.k) ||
      !like_keys(run.v) || run.k.size(0) != q.size(0) || run.k.size(2) != q.size(2) ||
      run.k.size(3) != q.size(3))
    return false;
  if (!run.older_k.defined() && !run.older_v.defined()) return true;
  return like_keys(run.older_k) && like_keys(run.older_v) && run.alpha.defined() &&
         run.alpha.dim() == 2 && run.alpha.size(0) == q.size(0) && run.alpha.size(1) == 2;
}

/// Returns the runs that have rows. Throws if a run does not fit `q`.
std::vector<KeyValueRun> checked(const at::Tensor& q, const std::vector<KeyValueRun>& runs,
                                 const at::Tensor& bias = {}) {
  std::vector<KeyValueRun> filled;
  if (q.dim() != 4) refuse(q, {}, bias);
  for (const KeyValueRun& run : runs) {
    if (!fits(q, run)) refuse(q, run, bias);
    if (run.k.size(1) > 0) filled.push_back(run);
  }
  return filled;
}

bool own_code_for(const at::Tensor& q) {
  return q.device().is_cpu() && q.scalar_type() == at::kFloat && simd::table().beats_library &&
         use_cpu_kernels();
}

/// Positions of the heads' data, so that threads need no tensors.
struct HeadRows {
  const float* data;
  int64_t batch_stride, row_stride, head_stride, heads;

  explicit HeadRows(const at::Tensor& x)
      : data(x.const_data_ptr<float>()),
        batch_stride(x.stride(0)),
        row_stride(x.stride(1)),
        head_stride(x.stride(2)),
        heads(x.size(2)) {}
  const float* head(int64_t index) const {
    return data + index / heads * batch_stride + index % heads * head_stride;
  }
};

/// Memory for the packed keys and values of `count` heads.
struct Packed {
  int64_t keys_size, values_size;
  at::Tensor storage;

  Packed(const simd::Table& simd, int64_t count, int64_t key_count, int64_t width,
         const at::Tensor& like)
      : keys_size(simd.packed_keys_size(key_count, width)),
        values_size(simd.packed_values_size(key_count, width)),
        storage(at::empty({count * (keys_size + values_size)}, like.options())) {}
  float* keys(int64_t slot) {
    return storage.mutable_data_ptr<float>() + slot * (keys_size + values_size);
  }
  float* values(int64_t slot) { return keys(slot) + keys_size; }
};

/// Every head's runs of keys and of values, in the form in which they are packed.
class HeadRuns {
 public:
  HeadRuns(const std::vector<KeyValueRun>& runs, int64_t batch, int64_t heads)
      : per_head_(static_cast<int>(runs.size())) {
    for (const KeyValueRun& run : runs) {
      count_ += run.k.size(1);
      for (const at::Tensor* x : {&run.k, &run.v, &run.older_k, &run.older_v})
        held_.push_back(x->defined() ? with_contiguous_rows(*x) : at::Tensor());
      held_.push_back(run.older_k.defined() ? run.alpha.to(at::kFloat).contiguous() : at::Tensor());
    }
    for (int64_t head = 0; head < batch * heads; ++head) {
      for (size_t i = 0; i < held_.size(); i += 5) {
        const float* alpha = held_[i + 4].defined()
                                 ? held_[i + 4].const_data_ptr<float>() + head / heads * 2
                                 : nullptr;
        keys_.push_back(row_run(held_[i], held_[i + 2], alpha ? alpha[0] : 0.0f, head));
        values_.push_back(row_run(held_[i + 1], held_[i + 3], alpha ? alpha[1] : 0.0f, head));
      }
    }
  }

  int64_t count() const { return count_; }
  void pack(const simd::Table& simd, int64_t head, int64_t width, float* keys,
            float* values) const {
    simd.pack_keys(keys_.data() + head * per_head_, per_head_, width, keys);
    simd.pack_values(values_.data() + head * per_head_, per_head_, width, values);
  }

 private:
  static simd::RowRun row_run(const at::Tensor& now, const at::Tensor& older, float alpha,
                              int64_t head) {
    const HeadRows rows(now);
    simd::RowRun run{rows.head(head), nullptr, rows.row_stride, 0, now.size(1), alpha};
    if (older.defined()) {
      const HeadRows before(older);
      run.older = before.head(head);
      run.older_stride = before.row_stride;
    }
    return run;
  }

  int per_head_;
  int64_t count_ = 0;
  std::vector<at::Tensor> held_;  // k, v, older_k, older_v, alpha of every run
  std::vector<simd::RowRun> keys_, values_;
};

/// Computes attention into `out` and, if it is defined, `log_sum_exp`; both contiguous. No
/// dimension is 0.
void own_attention(const at::Tensor& q_in, const std::vector<KeyValueRun>& runs, double scale,
                   const at::Tensor& bias_in, at::Tensor& out, at::Tensor& log_sum_exp) {
  const at::Tensor q = with_contiguous_rows(q_in);
  at::Tensor bias;
  if (bias_in.defined()) bias = bias_in.to(at::kFloat).contiguous();
  const int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), width = q.size(3);
  const HeadRuns head_runs(runs, batch, heads);
  const int64_t keys = head_runs.count();

  const simd::Table& simd = simd::table();
  const HeadRows q_heads(q);
  const float* bias_data = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  float* out_data = out.mutable_data_ptr<float>();
  float* sum_data = log_sum_exp.defined() ? log_sum_exp.mutable_data_ptr<float>() : nullptr;
  const int64_t all = batch * heads, threads = at::get_num_threads();

  const auto attend = [&](int64_t head, int64_t begin, int64_t end, const float* packed_keys,
                          const float* packed_values, float* scratch) {
    simd::AttentionTask task{};
    task.q = q_heads.head(head) + begin * q_heads.row_stride;
    task.q_stride = q_heads.row_stride;
    task.keys = packed_keys;
    task.values = packed_values;
    task.bias = bias_data ? bias_data + head / heads * keys : nullptr;
    const int64_t row = (head / heads * queries + begin) * heads + head % heads;
    task.out = out_data + row * width;
    task.out_stride = heads * width;
    task.log_sum_exp = sum_data ? sum_data + row : nullptr;
    task.sum_stride = heads;
    task.queries = end - begin;
    task.key_count = keys;
    task.width = width;
    task.scale = static_cast<float>(scale);
    task.scratch = scratch;
    simd.attention(task);
  };

  const int64_t scratch_size = simd.attention_scratch(width);
  if (all % threads == 0 || all >= 8 * threads) {
    at::Tensor scratch = at::empty({threads, scratch_size}, q.options());
    Packed packed(simd, threads, keys, width, q);
    float* scratch_data = scratch.mutable_data_ptr<float>();
    parallel_for(0, all, 1, [&](int64_t begin, int64_t end) {
      const int64_t slot = at::get_thread_num();
      for (int64_t head = begin; head < end; ++head) {
        head_runs.pack(simd, head, width, packed.keys(slot), packed.values(slot));
        attend(head, 0, queries, packed.keys(slot), packed.values(slot),
               scratch_data + slot * scratch_size);
      }
    });
    return;
  }

  Packed packed(simd, all, keys, width, q);
  parallel_for(0, all, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      head_runs.pack(simd, head, width, packed.keys(head), packed.values(head));
  });
  at::Tensor scratch = at::empty({threads, scratch_size}, q.options());
  float* scratch_data = scratch.mutable_data_ptr<float>();
  const int64_t step = simd.attention_block, blocks = (queries + step - 1) / step;
  parallel_for(0, all * blocks, 1, [&](int64_t begin, int64_t end) {
    float* own = scratch_data + at::get_thread_num() * scratch_size;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t head = item / blocks, first = item % blocks * step;
      attend(head, first, std::min(queries, first + step), packed.keys(head), packed.values(head),
             own);
    }
  });
}

at::Tensor whole_attention(const at::Tensor& q, const std::vector<KeyValueRun>& runs, double scale,
                           const at::Tensor& bias) {
  if (q.numel() == 0) return at::empty(q.sizes(), q.options());
  if (runs.empty()) {
    std::ostringstream text;
    text << "[attention] q " << q.sizes() << " has no keys";
    throw std::invalid_argument(text.str());
  }
  if (!own_code_for(q)) return library_attention(q, runs, scale, bias);
  at::Tensor out = at::empty(q.sizes(), q.options()), no_sums;
  own_attention(q, runs, scale, bias, out, no_sums);
  return out;
}

constexpr int64_t kMergeGrain = 64;

void check_parts(const PartialAttention& into, const PartialAttention& other) {
  const auto fits = [](const PartialAttention& part) {
    return part.out.dim() == 4 && part.log_sum_exp.scalar_type() == at::kFloat &&
           part.log_sum_exp.sizes() == part.out.sizes().slice(0, 3);
  };
  if (fits(into) && fits(other) && into.out.sizes() == other.out.sizes()) return;
  std::ostringstream text;
  text << "[merge_attention] into " << into.out.sizes() << " with sums " << into.log_sum_exp.sizes()
       << ", other " << other.out.sizes() << " with sums " << other.log_sum_exp.sizes();
  throw std::invalid_argument(text.str());
}

void merge_by_library(PartialAttention& into, const PartialAttention& other) {
  const at::Tensor top = at::maximum(into.log_sum_exp, other.log_sum_exp);
  const at::Tensor empty = top == -INFINITY;
  const at::Tensor pivot = top.masked_fill(empty, 0);
  const at::Tensor weight = (into.log_sum_exp - pivot).exp_(),
                   other_weight = (other.log_sum_exp - pivot).exp_();
  const at::Tensor total = (weight + other_weight).masked_fill_(empty, 1);
  const auto weighed = [&](const at::Tensor& out, const at::Tensor& part) {
    return out.to(at::kFloat)
        .mul((part / total).unsqueeze(3))
        .masked_fill_((part == 0).unsqueeze(3), 0);
  };
  into.out.copy_(weighed(into.out, weight).add_(weighed(other.out, other_weight)));
  into.log_sum_exp.copy_((pivot + total.log()).masked_fill_(empty, -INFINITY));
}

bool in_place(const PartialAttention& part) {
  return part.out.is_contiguous() && part.log_sum_exp.is_contiguous();
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const std::vector<KeyValueRun>& runs, double scale) {
  return whole_attention(q, checked(q, runs), scale, {});
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                     const std::optional<at::Tensor>& key_bias) {
  const KeyValueRun run{k, v, {}, {}, {}};
  const at::Tensor bias = key_bias.value_or(at::Tensor());
  const std::vector<KeyValueRun> runs = checked(q, {run}, bias);
  if (bias.defined() && (bias.dim() != 2 || bias.size(0) != k.size(0) || bias.size(1) != k.size(1)))
    refuse(q, run, bias);
  return whole_attention(q, runs, scale, bias);
}

PartialAttention attention_part(const at::Tensor& q, const std::vector<KeyValueRun>& runs_in,
                                double scale) {
  const std::vector<KeyValueRun> runs = checked(q, runs_in);
  const auto sums = q.options().dtype(at::kFloat);
  if (q.numel() == 0 || runs.empty())
    return {at::zeros(q.sizes(), q.options()),
            at::full(q.sizes().slice(0, 3), runs.empty() ? -INFINITY : 0.0, sums)};
  if (!own_code_for(q)) return library_attention_part(q, runs, scale);
  PartialAttention part{at::empty(q.sizes(), q.options()), at::empty(q.sizes().slice(0, 3), sums)};
  own_attention(q, runs, scale, {}, part.out, part.log_sum_exp);
  return part;
}

void merge_attention(PartialAttention& into, const PartialAttention& other) {
  check_parts(into, other);
  if (into.out.numel() == 0) return;
  const bool own = into.out.is_cpu() && other.out.is_cpu() &&
                   into.out.scalar_type() == at::kFloat && in_place(into);
  const bool types_fit =
      into.out.scalar_type() == at::kFloat || into.out.scalar_type() == other.out.scalar_type();
  if (const CudaKernels* cuda = cuda_kernels_for(other.out);
      cuda && into.out.is_cuda() && in_place(into) && types_fit)
    return merge_attention_cuda(*cuda, into, other);
  if (!own) return merge_by_library(into, other);
  const at::Tensor other_out = other.out.to(at::kFloat).contiguous(),
                   other_sums = other.log_sum_exp.contiguous();
  const int64_t rows = into.log_sum_exp.numel(), width = into.out.size(3);
  float *to = into.out.mutable_data_ptr<float>(),
        *to_sums = into.log_sum_exp.mutable_data_ptr<float>();
  const float *from = other_out.const_data_ptr<float>(),
              *from_sums = other_sums.const_data_ptr<float>();
  const simd::Table& simd = simd::table();
  parallel_for(0, rows, kMergeGrain, [&](int64_t begin, int64_t end) {
    simd.merge_attention(to + begin * width, to_sums + begin, from + begin * width,
                         from_sums + begin, end - begin, width);
  });
}

}  // namespace troupe::kernels
