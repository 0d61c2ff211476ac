#include "kernels/attention.h"

#include <algorithm>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/parallel.h"
#include "kernels/simd/isa.h"

namespace troupe::kernels {

namespace {

void check_shapes(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const std::optional<at::Tensor>& bias) {
  const bool agree =
      q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) &&
      q.size(2) == k.size(2) && q.size(3) == k.size(3) && k.size(1) > 0 &&
      (!bias || (bias->dim() == 2 && bias->size(0) == k.size(0) && bias->size(1) == k.size(1)));
  if (agree) return;
  std::ostringstream text;
  text << "[attention] q " << q.sizes() << ", k " << k.sizes() << ", v " << v.sizes();
  if (bias) text << ", key_bias " << bias->sizes();
  throw std::invalid_argument(text.str());
}

at::Tensor library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             double scale, const std::optional<at::Tensor>& bias) {
  std::optional<at::Tensor> mask;
  if (bias)
    mask = bias->to(q.scalar_type())
               .unsqueeze(1)
               .unsqueeze(1)
               .expand({q.size(0), q.size(2), q.size(1), k.size(1)});
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          mask, 0.0, false, scale)
      .transpose(1, 2)
      .contiguous();
}

at::Tensor with_contiguous_rows(const at::Tensor& x) {
  return x.stride(3) == 1 || x.size(3) == 1 ? x : x.contiguous();
}

/// Positions of the heads' data, so that threads need no tensors.
struct Heads {
  const float* data;
  int64_t batch_stride, row_stride, head_stride, heads;

  explicit Heads(const at::Tensor& x)
      : data(x.const_data_ptr<float>()),
        batch_stride(x.stride(0)),
        row_stride(x.stride(1)),
        head_stride(x.stride(2)),
        heads(x.size(2)) {}
  const float* head(int64_t index) const {
    return data + index / heads * batch_stride + index % heads * head_stride;
  }
};

/// Where packed keys and values of `count` heads live.
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

at::Tensor own_attention(const at::Tensor& q_in, const at::Tensor& k_in, const at::Tensor& v_in,
                         double scale, const std::optional<at::Tensor>& bias_in) {
  const at::Tensor q = with_contiguous_rows(q_in), k = with_contiguous_rows(k_in),
                   v = with_contiguous_rows(v_in);
  at::Tensor bias;
  if (bias_in) bias = bias_in->to(at::kFloat).contiguous();
  const int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), width = q.size(3),
                keys = k.size(1);
  at::Tensor out = at::empty({batch, queries, heads, width}, q.options());
  if (out.numel() == 0) return out;

  const simd::Table& simd = simd::table();
  const Heads q_heads(q), k_heads(k), v_heads(v);
  const float* bias_data = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  float* out_data = out.mutable_data_ptr<float>();
  const int64_t all = batch * heads, threads = at::get_num_threads();

  const auto pack = [&](int64_t head, float* packed_keys, float* packed_values) {
    simd.pack_keys(k_heads.head(head), k_heads.row_stride, keys, width, packed_keys);
    simd.pack_values(v_heads.head(head), v_heads.row_stride, keys, width, packed_values);
  };
  const auto attend = [&](int64_t head, int64_t begin, int64_t end, const float* packed_keys,
                          const float* packed_values, float* scratch) {
    simd::AttentionTask task{};
    task.q = q_heads.head(head) + begin * q_heads.row_stride;
    task.q_stride = q_heads.row_stride;
    task.keys = packed_keys;
    task.values = packed_values;
    task.bias = bias_data ? bias_data + head / heads * keys : nullptr;
    task.out = out_data + ((head / heads * queries + begin) * heads + head % heads) * width;
    task.out_stride = heads * width;
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
        pack(head, packed.keys(slot), packed.values(slot));
        attend(head, 0, queries, packed.keys(slot), packed.values(slot),
               scratch_data + slot * scratch_size);
      }
    });
    return out;
  }

  Packed packed(simd, all, keys, width, q);
  parallel_for(0, all, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      pack(head, packed.keys(head), packed.values(head));
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
  return out;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                     const std::optional<at::Tensor>& key_bias) {
  check_shapes(q, k, v, key_bias);
  const bool own = q.device().is_cpu() && q.scalar_type() == at::kFloat &&
                   k.scalar_type() == at::kFloat && v.scalar_type() == at::kFloat &&
                   simd::table().beats_library;
  return own ? own_attention(q, k, v, scale, key_bias)
             : library_attention(q, k, v, scale, key_bias);
}

}  // namespace troupe::kernels
