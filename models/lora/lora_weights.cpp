#include "models/lora/lora_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace troupe::models {
namespace {

at::Tensor half(const WeightStore& weights, const std::string& name) {
  const auto& shape = weights.index().at(name).shape;
  return weights.get(name, shape, at::kFloat).reshape({shape.front(), -1});
}

}  // namespace

LoraWeights::LoraWeights(const std::vector<LoraChoice>& loras, const spec::ModelSpec& model) {
  for (const LoraChoice& choice : loras) {
    auto spec = spec::read_lora_spec(choice.file, model);
    files_.push_back({choice.scale, WeightStore(std::move(spec.weights)), std::move(spec.layers)});
    const std::size_t file = files_.size() - 1;
    const auto& layers = files_.back().layers;
    for (std::size_t layer = 0; layer < layers.size(); ++layer) {
      for (const auto& part : layers[layer].parts)
        additions_[{layers[layer].component, part.tensor}].push_back({file, layer, part});
    }
  }
}

bool LoraWeights::touches(const std::string& component, const std::string& tensor) const {
  return additions_.contains({component, tensor});
}

double LoraWeights::factor(const File& file, const spec::LoraLayer& layer) const {
  double alpha = layer.known_alpha.value_or(static_cast<double>(layer.rank));
  if (!layer.known_alpha && !layer.alpha.empty()) {
    const auto& shape = file.weights.index().at(layer.alpha).shape;
    alpha = file.weights.get(layer.alpha, shape, at::kFloat).item<float>();
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
    const std::int64_t from = part.from + begin - part.to;
    const at::Tensor up = half(file.weights, layer.up).slice(0, from, from + end - begin);
    const at::Tensor down = half(file.weights, layer.down).slice(1, column, column + columns);
    sum.slice(0, begin - row, end - row).add_(at::mm(up, down), factor(file, layer));
    file.weights.release(layer.up);
    file.weights.release(layer.down);
  }
  return sum.view(weight.sizes()).to(weight.scalar_type()).to(weight.device());
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
