#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/attention.h"
#include "kernels/cuda_calls.h"
#include "kernels/parallel.h"
#include "kernels/simd/isa.h"

namespace troupe::kernels {

namespace {

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
