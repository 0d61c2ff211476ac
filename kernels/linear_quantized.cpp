#include <algorithm>
#include <stdexcept>
#include <utility>

#include <ATen/ATen.h>

#include "kernels/elementwise.h"
#include "kernels/linear.h"
#include "kernels/parallel.h"
#include "kernels/simd/isa.h"

namespace troupe::kernels {

namespace {

/// Sums of so many rows are made and used while they are in a cache. Fewer would lay out the weight
/// for the product more often.
constexpr int64_t kBlockRows = 256;

}  // namespace

Linear::Linear(QuantizedWeight weight, const at::Tensor& bias)
    : in_(weight.values.size(1)), out_(weight.values.size(0)), quantized_(std::move(weight)) {
  if (quantized_.scales.numel() != out_ || (bias.defined() && bias.numel() != out_))
    throw std::invalid_argument("[Linear] scales or bias differ from the weight in outputs");
  if (bias.defined()) bias_ = bias.contiguous();
}

bool Linear::scales_in_place(const at::Tensor& out) const {
  return quantized_.type == WeightType::int8 && out.is_cpu() && out.scalar_type() == at::kFloat &&
         out.is_contiguous() && (!bias_.defined() || bias_.scalar_type() == at::kFloat);
}

void Linear::scale_sums(const at::Tensor& sums, const at::Tensor& largest, at::Tensor& out,
                        Tail tail, const at::Tensor& gate, int64_t first_row) const {
  const int64_t rows = largest.size(0);
  if (out.numel() != rows * out_ || (out.dim() > 0 && out.size(-1) != out_) ||
      (tail == Tail::kGatedAdd &&
       (gate.dim() != 2 || gate.size(1) != out_ || out.dim() != 3 || gate.size(0) != out.size(0))))
    throw std::invalid_argument("[Linear] residual, x and gate differ in rows or columns");
  if (out.numel() == 0) return;
  if (!scales_in_place(out)) {
    const double steps = quantized_.type == WeightType::int8 ? 127.0 : detail::kLargestFp8;
    at::Tensor y = sums.to(at::kFloat) * ((largest / steps).unsqueeze(1) * quantized_.scales);
    if (bias_.defined()) y += bias_;
    y = y.to(out.scalar_type()).view(out.sizes());
    if (tail == Tail::kGelu) gelu_tanh_(y);
    if (tail == Tail::kAdd) out.add_(y);
    if (tail == Tail::kGatedAdd) add_gated(out, y, gate);
    if (tail == Tail::kNone || tail == Tail::kGelu) out.copy_(y);
    return;
  }
  const at::Tensor gates = tail == Tail::kGatedAdd ? gate.contiguous() : at::Tensor();
  simd::ScaleTask task{};
  const bool integers = sums.scalar_type() == at::kInt;
  task.largest = largest.const_data_ptr<float>();
  task.scales = quantized_.scales.const_data_ptr<float>();
  task.bias = bias_.defined() ? bias_.const_data_ptr<float>() : nullptr;
  task.out = out.mutable_data_ptr<float>();
  task.columns = out_;
  task.epilogue = static_cast<simd::Epilogue>(tail);
  if (gates.defined()) {
    task.gate = gates.const_data_ptr<float>();
    task.gate_stride = out_;
    task.gate_rows = std::max<int64_t>(rows / gates.size(0), 1);
  }
  const simd::Table& simd = simd::table();
  parallel_for(0, sums.size(0), 8, [&](int64_t begin, int64_t end) {
    simd::ScaleTask part = task;
    if (integers) part.integers = sums.const_data_ptr<int32_t>() + begin * out_;
    if (!integers) part.floats = sums.const_data_ptr<float>() + begin * out_;
    part.row_begin = first_row + begin;
    part.row_end = first_row + end;
    simd.scale_sums(part);
  });
}

void Linear::run_quantized(const at::Tensor& x, at::Tensor& out, Tail tail,
                           const at::Tensor& gate) const {
  if (!scales_in_place(out)) {
    const at::Tensor largest = largest_of_rows(x);
    scale_sums(quantized_sums(x, largest, quantized_), largest, out, tail, gate);
    return;
  }
  at::Tensor largest;
  const at::Tensor bytes = bytes_of_rows(x, &largest);
  for (int64_t row = 0; row < bytes.size(0); row += kBlockRows) {
    const at::Tensor block = bytes.slice(0, row, row + kBlockRows);
    scale_sums(detail::byte_products(block, quantized_.values), largest, out, tail, gate, row);
  }
}

at::Tensor Linear::sums(const at::Tensor& x, const at::Tensor& largest) const {
  check_input(x);
  at::Tensor sums = quantized_sums(x, largest, quantized_).to(at::kFloat);
  // A row that is not finite here makes its sums NaN, even if the group's largest magnitude has
  // lost that.
  if (sums.numel() > 0) sums.add_((largest_of_rows(x) * 0).unsqueeze(1));
  return sums.contiguous();
}

void Linear::add_sums_to(at::Tensor& residual, const at::Tensor& sums, const at::Tensor& largest,
                         const std::optional<at::Tensor>& gate) const {
  scale_sums(sums, largest, residual, gate ? Tail::kGatedAdd : Tail::kAdd,
             gate.value_or(at::Tensor()));
}

}  // namespace troupe::kernels
