#include "models/dit/weight_loader.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace troupe::models {

at::Tensor WeightLoader::part(const std::string& name, const at::Tensor& stored, Slice rows,
                              Slice columns) const {
  at::Tensor own = stored;
  if (rows.end - rows.begin < stored.size(0)) own = own.slice(0, rows.begin, rows.end);
  if (columns.end - columns.begin < stored.size(1)) own = own.slice(1, columns.begin, columns.end);
  return adapt ? adapt(name, own, rows.begin, columns.begin) : own;
}

kernels::QuantizedWeight WeightLoader::quantized(const std::string& tensor, int64_t in,
                                                 int64_t out) const {
  auto made = kernels::quantize_weight(whole(tensor, {out, in}), type);
  release(tensor);
  return made;
}

std::optional<kernels::Linear> WeightLoader::kept_packed(const std::vector<std::string>& tensors,
                                                         at::IntArrayRef shape,
                                                         const std::vector<Slice>& rows,
                                                         Slice columns,
                                                         const at::Tensor& bias) const {
  std::vector<std::optional<PackedMatrix>> matrices;
  for (const std::string& tensor : tensors)
    matrices.push_back(packed ? packed(tensor) : std::nullopt);
  if (std::ranges::none_of(matrices, [](const auto& matrix) { return matrix.has_value(); }))
    return std::nullopt;
  std::vector<kernels::StoredRows> parts;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor values = get(tensors[i], shape);  // looks at them, too
    for (const Slice& run : rows) {
      if (!matrices[i]) {
        parts.push_back({part(tensors[i], values, run, columns).clone(),
                         [](const at::Tensor& own) { return own; }});
        continue;
      }
      const auto own = matrices[i]->part(run.begin, run.end, columns.begin, columns.end);
      parts.push_back({own.bytes.to(values.device()), own.unpacker(values.scalar_type())});
    }
    release(tensors[i]);
  }
  return kernels::Linear(std::move(parts), columns.end - columns.begin, bias);
}

at::Tensor WeightLoader::whole(const std::string& name, at::IntArrayRef shape) const {
  const at::Tensor stored = get(name, shape);
  return adapt ? adapt(name, stored, 0, 0) : stored;
}

kernels::Linear WeightLoader::linear(const std::string& name, int64_t in, int64_t out,
                                     bool bias) const {
  const std::string tensor = name + ".weight";
  const at::Tensor own_bias = bias ? copy(name + ".bias", {out}) : at::Tensor();
  if (auto kept = kept_packed({tensor}, {out, in}, {{0, out}}, {0, in}, own_bias)) return *kept;
  const at::Tensor stored = get(tensor, {out, in});
  const at::Tensor weight = part(tensor, stored, {0, out}, {0, in});
  kernels::Linear made(weight, own_bias);
  if (!weight.is_same(stored) || !made.keeps(weight)) release(tensor);
  return made;
}

kernels::Linear WeightLoader::joined(const std::vector<std::string>& names, int64_t in,
                                     int64_t out_each, bool bias, Slice rows) const {
  std::vector<at::Tensor> weights, scales, biases;
  std::vector<std::string> tensors;
  for (const std::string& name : names) {
    tensors.push_back(name + ".weight");
    if (bias) biases.push_back(get(name + ".bias", {out_each}).slice(0, rows.begin, rows.end));
  }
  const at::Tensor all_biases = bias ? at::cat(biases) : at::Tensor();
  if (auto kept = kept_packed(tensors, {out_each, in}, {rows}, {0, in}, all_biases)) return *kept;
  const bool small = type != kernels::WeightType::as_computed;
  for (const std::string& tensor : tensors) {
    if (small) {
      const auto whole = quantized(tensor, in, out_each);
      weights.push_back(whole.values.slice(0, rows.begin, rows.end));
      scales.push_back(whole.scales.slice(0, rows.begin, rows.end));
    } else {
      weights.push_back(part(tensor, get(tensor, {out_each, in}), rows, {0, in}));
    }
  }
  if (small) return kernels::Linear({type, at::cat(weights), at::cat(scales)}, all_biases);
  kernels::Linear made(at::cat(weights), all_biases);
  weights.clear();
  for (const std::string& tensor : tensors)
    release(tensor);
  return made;
}

kernels::Linear WeightLoader::rows_of(const std::string& name, int64_t in, int64_t out,
                                      const std::vector<Slice>& rows, bool bias) const {
  const std::string tensor = name + ".weight";
  std::vector<at::Tensor> weights, scales, biases;
  if (bias) {
    const at::Tensor all = get(name + ".bias", {out});
    for (const auto& [begin, end] : rows)
      biases.push_back(all.slice(0, begin, end));
  }
  const at::Tensor all_biases = bias ? at::cat(biases) : at::Tensor();
  if (auto kept = kept_packed({tensor}, {out, in}, rows, {0, in}, all_biases)) return *kept;
  if (type != kernels::WeightType::as_computed) {
    const auto all = quantized(tensor, in, out);
    for (const auto& [begin, end] : rows) {
      weights.push_back(all.values.slice(0, begin, end));
      scales.push_back(all.scales.slice(0, begin, end));
    }
    return kernels::Linear({type, at::cat(weights), at::cat(scales)}, all_biases);
  }
  const at::Tensor stored = get(tensor, {out, in});
  for (const Slice& run : rows)
    weights.push_back(part(tensor, stored, run, {0, in}));
  kernels::Linear made(at::cat(weights), all_biases);
  weights.clear();
  release(tensor);
  return made;
}

kernels::Linear WeightLoader::gated(const std::string& name, int64_t in, int64_t wide,
                                    Slice columns, bool bias, bool gate_last) const {
  const Slice behind{wide + columns.begin, wide + columns.end};
  return rows_of(name, in, 2 * wide,
                 gate_last ? std::vector{behind, columns} : std::vector{columns, behind}, bias);
}

kernels::Linear WeightLoader::narrow(const std::string& name, int64_t in, int64_t out,
                                     Slice columns, bool bias, bool has_bias) const {
  const std::string tensor = name + ".weight";
  if (type != kernels::WeightType::as_computed) {
    auto whole = quantized(tensor, in, out);
    if (columns.end - columns.begin < in)
      whole.values = whole.values.slice(1, columns.begin, columns.end).clone();
    return kernels::Linear(std::move(whole), has_bias ? copy(name + ".bias", {out}) : at::Tensor());
  }
  const at::Tensor own_bias = bias ? copy(name + ".bias", {out}) : at::Tensor();
  if (auto kept = kept_packed({tensor}, {out, in}, {{0, out}}, columns, own_bias)) return *kept;
  const at::Tensor stored = get(tensor, {out, in});
  const at::Tensor weight = part(tensor, stored, {0, out}, columns).contiguous();
  kernels::Linear made(weight, own_bias);
  if (!weight.is_same(stored) || !made.keeps(weight)) release(tensor);
  return made;
}

at::Tensor WeightLoader::copy(const std::string& name, at::IntArrayRef shape) const {
  return get(name, shape).clone();
}

WeightLoader WeightLoader::detached() const {
  WeightLoader made = *this;
  made.stream.reset();
  return made;
}

WeightLoader::Noted::Noted(const WeightLoader& of) : loader(of) {
  loader.get = [this, get = of.get](const std::string& name, at::IntArrayRef shape) {
    names.insert(name);
    return get(name, shape);
  };
}

void WeightLoader::Noted::release() const {
  for (const std::string& name : names)
    loader.release(name);
}

}  // namespace troupe::models
