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

/// Elements of a stored weight that are unpacked at a time for a product of LibTorch's.
constexpr int64_t kUnpackedElements = int64_t{1} << 22;

bool runs_own_code(const at::Tensor& t) {
  return t.device().is_cpu() && t.scalar_type() == at::kFloat && simd::table().beats_library &&
         use_cpu_kernels();
}

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
  if (runs_own_code(weight) && in_ > 0) {
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
  for (const StoredRows& part : stored_)
    total += static_cast<int64_t>(part.bytes.nbytes());
  return total;
}

void Linear::list_tensors(std::vector<at::Tensor*>& all) {
  all.insert(all.end(), {&weight_, &packed_, &bias_, &quantized_.values, &quantized_.scales});
  for (StoredRows& part : stored_)
    all.push_back(&part.bytes);
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

bool Linear::has_panels(const at::Tensor& x) const {
  return packed_.defined() || (!stored_.empty() && in_ > 0 && runs_own_code(x));
}

at::Tensor Linear::stored_values(int64_t begin, int64_t end) const {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const StoredRows& part : stored_) {
    const int64_t from = std::max(begin - first, int64_t{0});
    const int64_t to = std::min(end - first, part.bytes.size(0));
    if (from < to) parts.push_back(part.values(part.bytes.slice(0, from, to)));
    first += part.bytes.size(0);
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

void Linear::run_panels(const at::Tensor& x, at::Tensor& out, Tail tail,
                        const at::Tensor& gate) const {
  const at::Tensor input = x.contiguous();
  const simd::Table& simd = simd::table();
  const int64_t rows = input.numel() / in_;
  if (out.numel() == 0) return;
  simd::GemmTask task{};
  task.x = input.const_data_ptr<float>();
  task.x_stride = in_;
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
  if (!stored_.empty()) return run_stored_panels(task, rows);
  task.packed = packed_.const_data_ptr<float>();
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

void Linear::run_stored_panels(const simd::GemmTask& whole, int64_t rows) const {
  const simd::Table& simd = simd::table();
  const int64_t step = block_rows(in_), panels = (out_ + simd.panel - 1) / simd.panel;
  parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
    const at::Tensor packed = at::empty({in_, simd.panel}, at::kFloat);
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t first = panel * simd.panel, last = std::min(out_, first + simd.panel);
      const at::Tensor values = stored_values(first, last);
      simd.pack_weight(values.const_data_ptr<float>(), in_, last - first,
                       packed.mutable_data_ptr<float>());
      simd::GemmTask part = whole;
      part.packed = packed.const_data_ptr<float>();
      part.columns = last - first;
      part.panel_begin = 0;
      part.panel_end = 1;
      part.out += first;
      if (part.bias != nullptr) part.bias += first;
      if (part.gate != nullptr) part.gate += first;
      for (int64_t row = 0; row < rows; row += step) {
        part.row_begin = row;
        part.row_end = std::min(rows, row + step);
        simd.gemm(part);
      }
    }
  });
}

at::Tensor Linear::by_library(const at::Tensor& x) const {
  const auto optional = [](const at::Tensor& bias) {
    return bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  };
  if (stored_.empty()) return at::linear(x, weight_, optional(bias_));
  at::Tensor y = empty_like_rows(x);
  const int64_t step = std::max<int64_t>(kUnpackedElements / std::max<int64_t>(in_, 1), 1);
  for (int64_t first = 0; first < out_; first += step) {
    const int64_t last = std::min(out_, first + step);
    const at::Tensor bias = bias_.defined() ? bias_.slice(0, first, last) : bias_;
    y.slice(-1, first, last).copy_(at::linear(x, stored_values(first, last), optional(bias)));
  }
  return y;
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
  if (!has_panels(x)) return by_library(x);
  at::Tensor out = empty_like_rows(x);
  run_panels(x, out, Tail::kNone, {});
  return out;
}

at::Tensor Linear::gelu(const at::Tensor& x) const {
  if (quantized()) {
    check_input(x);
    at::Tensor out = empty_like_rows(x);
    run_quantized(x, out, Tail::kGelu, {});
    return out;
  }
  if (!has_panels(x)) {
    at::Tensor y = (*this)(x);
    gelu_tanh_(y);
    return y;
  }
  check_input(x);
  at::Tensor out = empty_like_rows(x);
  run_panels(x, out, Tail::kGelu, {});
  return out;
}

void Linear::add_to(at::Tensor& residual, const at::Tensor& x) const {
  if (quantized()) {
    check_input(x);
    run_quantized(x, residual, Tail::kAdd, {});
    return;
  }
  if (!has_panels(x) || !residual.is_contiguous()) {
    residual.add_((*this)(x));
    return;
  }
  check_input(x);
  if (residual.size(-1) != out_ || residual.numel() != x.numel() / in_ * out_) {
    throw std::invalid_argument("[Linear] residual and x differ in rows");
  }
  run_panels(x, residual, Tail::kAdd, {});
}

void Linear::add_gated_to(at::Tensor& residual, const at::Tensor& x, const at::Tensor& gate) const {
  if (quantized()) {
    check_input(x);
    run_quantized(x, residual, Tail::kGatedAdd, gate);
    return;
  }
  if (!has_panels(x) || !residual.is_contiguous()) {
    add_gated(residual, (*this)(x), gate);
    return;
  }
  check_input(x);
  if (residual.dim() != 3 || residual.size(-1) != out_ ||
      residual.numel() != x.numel() / in_ * out_ || gate.dim() != 2 ||
      gate.size(0) != residual.size(0) || gate.size(1) != out_) {
    throw std::invalid_argument("[Linear] residual, x and gate differ in rows or columns");
  }
  run_panels(x, residual, Tail::kGatedAdd, gate.contiguous());
}

Linear::Linear(QuantizedWeight weight, const at::Tensor& bias)
    : in_(weight.values.size(1)), out_(weight.values.size(0)), quantized_(std::move(weight)) {
  if (quantized_.scales.numel() != out_ || (bias.defined() && bias.numel() != out_))
    throw std::invalid_argument("[Linear] scales or bias differ from the weight in outputs");
  if (bias.defined()) bias_ = bias.contiguous();
}

Linear::Linear(std::vector<StoredRows> parts, int64_t in, const at::Tensor& bias)
    : in_(in), stored_(std::move(parts)) {
  for (const StoredRows& part : stored_)
    out_ += part.bytes.size(0);
  if (bias.defined() && bias.numel() != out_)
    throw std::invalid_argument("[Linear] the bias differs from the stored rows in outputs");
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
  write_of_bytes(bytes, largest, out, tail, gate);
}

void Linear::write_of_bytes(const at::Tensor& bytes, const at::Tensor& largest, at::Tensor& out,
                            Tail tail, const at::Tensor& gate) const {
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
