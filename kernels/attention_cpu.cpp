#include "kernels/attention.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/attention_library.h"
#include "kernels/cpu_kernels.h"
#include "kernels/parallel.h"
#include "kernels/simd/isa.h"
#include "kernels/tensor_layout.h"

namespace troupe::kernels {

namespace {

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

}  // namespace troupe::kernels
