#include "models/lora/lora_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace troupe::models {
namespace {

using spec::LoraRole;

/// Reads the tensors of a layer.
class LayerValues {
 public:
  LayerValues(const WeightStore& weights, const spec::LoraLayer& layer)
      : weights_(weights), layer_(layer) {}
  ~LayerValues() {
    for (const auto& [role, name] : layer_.tensors)
      weights_.release(name);
  }
  LayerValues(const LayerValues&) = delete;
  LayerValues& operator=(const LayerValues&) = delete;

  bool has(LoraRole role) const { return layer_.tensors.contains(role); }
  at::Tensor values(LoraRole role) const {
    const std::string& name = layer_.tensors.at(role);
    return weights_.get(name, weights_.index().at(name).shape, at::kFloat);
  }
  at::Tensor matrix(LoraRole role) const {
    const at::Tensor stored = values(role);
    return stored.reshape({stored.size(0), -1});
  }

  /// Returns rows [from, from + rows) and columns [column, column + columns) of the product,
  /// without its factor.
  at::Tensor product(std::int64_t from, std::int64_t rows, std::int64_t column,
                     std::int64_t columns) const {
    const auto part = [&](const at::Tensor& whole) {
      return whole.slice(0, from, from + rows).slice(1, column, column + columns);
    };
    switch (layer_.kind) {
      case spec::LoraKind::low_rank: {
        const at::Tensor up = matrix(LoraRole::up).slice(0, from, from + rows);
        const at::Tensor down =
            has(LoraRole::mid) ? with_kernel(at::Tensor(), matrix(LoraRole::down), LoraRole::mid)
                               : matrix(LoraRole::down);
        return at::mm(up, down.slice(1, column, column + columns));
      }
      case spec::LoraKind::hadamard:
        return part(factor(LoraRole::hada_w1_a, LoraRole::hada_w1_b, LoraRole::hada_t1)) *
               part(factor(LoraRole::hada_w2_a, LoraRole::hada_w2_b, LoraRole::hada_t2));
      case spec::LoraKind::kronecker:
        return part(
            at::kron(has(LoraRole::lokr_w1)
                         ? matrix(LoraRole::lokr_w1)
                         : at::mm(matrix(LoraRole::lokr_w1_a), matrix(LoraRole::lokr_w1_b)),
                     has(LoraRole::lokr_w2)
                         ? matrix(LoraRole::lokr_w2)
                         : factor(LoraRole::lokr_w2_a, LoraRole::lokr_w2_b, LoraRole::lokr_t2)));
      case spec::LoraKind::difference:
        break;
    }
    return part(matrix(layer_.tensors.begin()->first));
  }

 private:
  /// Returns a · b, or aᵀ · kernel · b with a kernel [i, j, places] between a [i, rows] and b [j,
  /// inputs].
  at::Tensor factor(LoraRole a, LoraRole b, LoraRole kernel) const {
    return has(kernel) ? with_kernel(matrix(a), matrix(b), kernel) : at::mm(matrix(a), matrix(b));
  }
  /// Returns aᵀ · kernel · b, or kernel · b where `a` is undefined.
  at::Tensor with_kernel(const at::Tensor& a, const at::Tensor& b, LoraRole role) const {
    const at::Tensor stored = values(role);
    const std::int64_t outer = stored.size(0), inner = stored.size(1);
    const at::Tensor kernel = stored.reshape({outer, inner, -1});
    // [outer, places, inner] · [inner, inputs]
    const at::Tensor made =
        at::matmul(kernel.transpose(1, 2), b).transpose(1, 2).reshape({outer, -1});
    return a.defined() ? at::mm(a.t(), made) : made;
  }

  const WeightStore& weights_;
  const spec::LoraLayer& layer_;
};

bool has_lengths(const spec::LoraLayer& layer) {
  return layer.tensors.contains(LoraRole::magnitude) ||
         layer.tensors.contains(LoraRole::input_magnitude);
}

const spec::WeightIndex& weights_of(const spec::ModelSpec& model, const std::string& component) {
  for (const auto& encoder : model.text_encoders) {
    if (encoder.component == component) return encoder.weights;
  }
  return component == spec::kSecondTransformer ? model.second_transformer.value().weights
                                               : model.transformer_weights;
}

}  // namespace

LoraWeights::LoraWeights(const std::vector<LoraChoice>& loras, const spec::ModelSpec& model) {
  for (const LoraChoice& choice : loras) {
    auto spec = spec::read_lora_spec(choice.file, model, choice.of_second);
    files_.push_back({choice.scale, WeightStore(std::move(spec.weights)), std::move(spec.layers)});
    const std::size_t file = files_.size() - 1;
    const auto& layers = files_.back().layers;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      const auto& of = layers[layer];
      for (const auto& part : of.parts)
        additions_[{of.component, part.tensor}].push_back({file, layer, part});
      if (has_lengths(of) && !stored_.contains(of.component))
        stored_.emplace(of.component, WeightStore(weights_of(model, of.component)));
    }
  }
}

bool LoraWeights::touches(const std::string& component, const std::string& tensor) const {
  return additions_.contains({component, tensor});
}

double LoraWeights::factor(const File& file, const spec::LoraLayer& layer) const {
  if (layer.rank == 0) return file.scale;
  double alpha = layer.known_alpha.value_or(static_cast<double>(layer.rank));
  if (const auto name = layer.tensor(LoraRole::alpha); !layer.known_alpha && !name.empty()) {
    const auto& shape = file.weights.index().at(name).shape;
    alpha = file.weights.get(name, shape, at::kFloat).item<float>();
  }
  return file.scale * alpha / static_cast<double>(layer.rank);
}

at::Tensor LoraWeights::add(const std::string& component, const std::string& tensor,
                            const at::Tensor& weight, std::int64_t row, std::int64_t column) const {
  const auto found = additions_.find({component, tensor});
  if (found == additions_.end() || weight.numel() == 0) return weight;
  const at::Tensor own = weight.to(at::kCPU, at::kFloat).reshape({weight.size(0), -1});
  at::Tensor sum = own.clone(at::MemoryFormat::Contiguous);
  const std::int64_t rows = sum.size(0), columns = sum.size(1);
  for (const Addition& addition : found->second) {
    const auto& part = addition.part;
    const std::int64_t begin = std::max(row, part.to);
    const std::int64_t end = std::min(row + rows, part.to + part.rows);
    if (begin >= end) continue;
    const File& file = files_[addition.file];
    const auto& layer = file.layers[addition.layer];
    at::Tensor changed = sum.slice(0, begin - row, end - row);
    if (has_lengths(layer)) {
      changed.add_(lengthened(tensor, addition, begin, end - begin, column, columns));
      continue;
    }
    const LayerValues values(file.weights, layer);
    changed.add_(values.product(part.from + begin - part.to, end - begin, column, columns),
                 factor(file, layer));
  }
  return sum.view(weight.sizes()).to(weight.scalar_type()).to(weight.device());
}

at::Tensor LoraWeights::lengthened(const std::string& tensor, const Addition& addition,
                                   std::int64_t row, std::int64_t rows, std::int64_t column,
                                   std::int64_t columns) const {
  const File& file = files_[addition.file];
  const auto& layer = file.layers[addition.layer];
  const LayerValues values(file.weights, layer);
  const WeightStore& store = stored_.at(layer.component);
  const at::Tensor all = store.get(tensor, store.index().at(tensor).shape, at::kFloat);
  const at::Tensor matrix = all.reshape({all.size(0), -1});
  const bool of_inputs = values.has(LoraRole::input_magnitude);
  // Lengths of columns are those of all rows.
  const std::int64_t first = of_inputs ? 0 : row;
  const at::Tensor own = of_inputs ? matrix : matrix.slice(0, row, row + rows);
  const std::int64_t from = addition.part.from + first - addition.part.to;
  at::Tensor sum = own.add(values.product(from, own.size(0), 0, own.size(1)), factor(file, layer));
  if (of_inputs) {
    const at::Tensor wanted = values.values(LoraRole::input_magnitude).reshape({1, -1, 1});
    at::Tensor by_input = sum.view({sum.size(0), wanted.size(1), -1});
    by_input.mul_(wanted / by_input.square().sum(at::IntArrayRef{0, 2}, true).sqrt());
  } else {
    const at::Tensor wanted = values.values(LoraRole::magnitude).reshape({-1, 1});
    sum.mul_(wanted.slice(0, from, from + own.size(0)) / sum.norm(2, at::IntArrayRef{1}, true));
  }
  sum.sub_(own);
  store.release(tensor);
  return sum.slice(0, row - first, row - first + rows).slice(1, column, column + columns);
}

void LoraWeights::adapt(WeightStore& store, const std::string& component) const {
  if (empty()) return;
  store.adapt([loras = *this, component](std::string_view name, const at::Tensor& stored) {
    const std::string tensor(name);
    if (!loras.touches(component, tensor)) return stored;
    return loras.add(component, tensor, stored.to(at::kFloat));  // rounded once, when it is read
  });
}

}  // namespace troupe::models
