#include "kernels/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "kernels/cpu_kernels.h"
#include "kernels/elementwise.h"
#include "kernels/simd/isa.h"

namespace troupe::kernels {
namespace {

// A block of rows is read once per panel, so it should stay in the second-level cache.
constexpr int64_t kBlockFloats = 64 * 1024;
constexpr int64_t kTileRows = 6;

int64_t block_rows(int64_t depth) {
  return std::clamp<int64_t>(kBlockFloats / std::max<int64_t>(depth, 1), 24, 96) / kTileRows *
         kTileRows;
}

/// Sums of so many rows are made and used while they are in a cache. Fewer would lay out the weight
/// for the product more often.
constexpr int64_t kBlockRows = 256;

}  // namespace

Linear::Linear(const at::Tensor& weight, const at::Tensor& bias) {
  if (weight.dim() != 2 ||
      (bias.defined() && (bias.dim() != 1 || bias.size(0) != weight.size(0)))) {
    std::ostringstream text;
    text << "[Linear] weight has shape " << weight.sizes() << ", bias "
         << (bias.defined() ? bias.sizes() : at::IntArrayRef{});
    throw std::invalid_argument(text.str());
  }
  out_ = weight.size(0);
  in_ = weight.size(1);
  if (bias.defined()) bias_ = bias.contiguous();
  const simd::Table& simd = simd::table();
  if (weight.device().is_cpu() && weight.scalar_type() == at::kFloat && simd.beats_library &&
      use_cpu_kernels() && in_ > 0) {
    const at::Tensor rows = weight.contiguous();
    const int64_t panels = (out_ + simd.panel - 1) / simd.panel;
    packed_ = at::empty({panels, in_, simd.panel}, weight.options());
    simd.pack_weight(rows.const_data_ptr<float>(), in_, out_, packed_.mutable_data_ptr<float>());
  } else {
    weight_ = weight.contiguous();
  }
}

int64_t Linear::bytes() const {
  int64_t total = 0;
  for (const at::Tensor* t : {&weight_, &packed_, &bias_, &quantized_.values, &quantized_.scales}) {
    if (t->defined()) total += static_cast<int64_t>(t->nbytes());
  }
  return total;
}

void Linear::list_tensors(std::vector<at::Tensor*>& all) {
  all.insert(all.end(), {&weight_, &packed_, &bias_, &quantized_.values, &quantized_.scales});
}

bool Linear::keeps(const at::Tensor& weight) const {
  return weight_.defined() && weight_.const_data_ptr() == weight.const_data_ptr();
}

void Linear::check_input(const at::Tensor& x) const {
  if (x.dim() >= 1 && x.size(-1) == in_) return;
  std::ostringstream text;
  text << "[Linear] x has shape " << x.sizes() << ", last dimension must be " << in_;
  throw std::invalid_argument(text.str());
}

void Linear::run_packed(const at::Tensor& x, at::Tensor& out, Tail tail,
                        const at::Tensor& gate) const {
  const at::Tensor input = x.contiguous();
  const simd::Table& simd = simd::table();
  const int64_t rows = input.numel() / in_;
  if (out.numel() == 0) return;
  simd::GemmTask task{};
  task.x = input.const_data_ptr<float>();
  task.x_stride = in_;
  task.packed = packed_.const_data_ptr<float>();
  task.bias = bias_.defined() ? bias_.const_data_ptr<float>() : nullptr;
  task.out = out.mutable_data_ptr<float>();
  task.out_stride = out_;
  task.depth = in_;
  task.columns = out_;
  task.epilogue = static_cast<simd::Epilogue>(tail);
  if (tail == Tail::kGatedAdd) {
    task.gate = gate.const_data_ptr<float>();
    task.gate_stride = out_;
    task.gate_rows = std::max<int64_t>(rows / gate.size(0), 1);
  }
  const int64_t step = block_rows(in_), blocks = (rows + step - 1) / step;
  const int64_t panels = packed_.size(0), threads = at::get_num_threads();
  const int64_t splits =
      blocks >= 4 * threads || threads == 1
          ? 1
          : std::min(panels, (4 * threads + blocks - 1) / std::max<int64_t>(blocks, 1));
  parallel_for(0, blocks * splits, 1, [&](int64_t begin, int64_t end) {
    simd::GemmTask part = task;
    for (int64_t item = begin; item < end; ++item) {
      part.row_begin = item / splits * step;
      part.row_end = std::min(rows, part.row_begin + step);
      part.panel_begin = item % splits * panels / splits;
      part.panel_end = (item % splits + 1) * panels / splits;
      simd.gemm(part);
    }
  });
}

at::Tensor Linear::empty_like_rows(const at::Tensor& x) const {
  auto shape = x.sizes().vec();
  shape.back() = out_;
  return at::empty(shape, x.options());
}

at::Tensor Linear::operator()(const at::Tensor& x) const {
  check_input(x);
  if (quantized()) {
    at::Tensor out = empty_like_rows(x);
    run_quantized(x, out, Tail::kNone, {});
    return out;
  }
  if (!packed())
    return at::linear(x, weight_,
                      bias_.defined() ? std::optional<at::Tensor>(bias_) : std::nullopt);
  at::Tensor out = empty_like_rows(x);
  run_packed(x, out, Tail::kNone, {});
  return out;
}

at::Tensor Linear::gelu(const at::Tensor& x) const {
  if (quantized()) {
    check_input(x);
    at::Tensor out = empty_like_rows(x);
    run_quantized(x, out, Tail::kGelu, {});
    return out;
  }
  if (!packed()) {
    at::Tensor y = (*this)(x);
    gelu_tanh_(y);
    return y;
  }
  check_input(x);
  at::Tensor out = empty_like_rows(x);
  run_packed(x, out, Tail::kGelu, {});
  return out;
}

void Linear::add_to(at::Tensor& residual, const at::Tensor& x) const {
  if (quantized()) {
    check_input(x);
    run_quantized(x, residual, Tail::kAdd, {});
    return;
  }
  if (!packed() || !residual.is_contiguous()) {
    residual.add_((*this)(x));
    return;
  }
  check_input(x);
  if (residual.size(-1) != out_ || residual.numel() != x.numel() / in_ * out_) {
    throw std::invalid_argument("[Linear] residual and x differ in rows");
  }
  run_packed(x, residual, Tail::kAdd, {});
}

void Linear::add_gated_to(at::Tensor& residual, const at::Tensor& x, const at::Tensor& gate) const {
  if (quantized()) {
    check_input(x);
    run_quantized(x, residual, Tail::kGatedAdd, gate);
    return;
  }
  if (!packed() || !residual.is_contiguous()) {
    add_gated(residual, (*this)(x), gate);
    return;
  }
  check_input(x);
  if (residual.dim() != 3 || residual.size(-1) != out_ ||
      residual.numel() != x.numel() / in_ * out_ || gate.dim() != 2 ||
      gate.size(0) != residual.size(0) || gate.size(1) != out_) {
    throw std::invalid_argument("[Linear] residual, x and gate differ in rows or columns");
  }
  run_packed(x, residual, Tail::kGatedAdd, gate.contiguous());
}

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
