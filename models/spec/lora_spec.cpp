#include "models/spec/lora_spec.h"

#include <string>

#include "base/format.h"
#include "models/spec/lora_metadata.h"
#include "models/spec/lora_pairs.h"
#include "models/spec/lora_refusal.h"
#include "models/spec/lora_targets.h"

namespace troupe::spec {
namespace {

std::int64_t count(const TensorEntry& entry, std::size_t from) {
  std::int64_t values = 1;
  for (std::size_t i = from; i < entry.shape.size(); ++i)
    values *= entry.shape[i];
  return values;
}

void require_floating(const TensorEntry& entry) {
  if (entry.bytes() == 0) refuse_lora(entry, "is empty");
  const auto type = entry.dtype;
  if (type != Dtype::float32 && type != Dtype::bfloat16 && type != Dtype::float16 &&
      type != Dtype::float64)
    refuse_lora(entry, "has dtype " + std::string(dtype_name(type)) + ", a floating one is needed");
}

void check_shapes(const LoraPair& pair, const LoraProducts& products, const LoraLayer& layer) {
  std::int64_t rows = 0;
  for (const LoraPart& part : layer.parts) {
    const auto size = products.size(part.tensor);
    rows += part.rows;
    if (size.rows == 0 || part.to + part.rows > size.rows)
      refuse_lora(*pair.up,
                  "is for tensor \"" + part.tensor + "\", which this model does not have so");
    if (count(*pair.down, 1) != size.columns) {
      refuse_lora(*pair.down, fmt::format("has shape {}, tensor \"{}\" takes {} inputs",
                                          shape_text(pair.down->shape), part.tensor, size.columns));
    }
  }
  if (pair.up->shape[0] != rows) {
    refuse_lora(*pair.up,
                fmt::format("has shape {}, tensor \"{}\" wants {} rows", shape_text(pair.up->shape),
                            layer.parts.front().tensor, rows));
  }
  if (count(*pair.up, 1) != layer.rank) {
    refuse_lora(*pair.up, fmt::format("has shape {}, but tensor \"{}\" is of rank {}",
                                      shape_text(pair.up->shape), pair.down->name, layer.rank));
  }
}

LoraLayer layer_of(const std::string& base, const LoraPair& pair, const LoraTargets& model,
                   const LoraMetadata& metadata) {
  const TensorEntry& any = pair.down ? *pair.down : pair.up ? *pair.up : *pair.alpha;
  const LoraOwner owner = model.owner_of(any, base);
  const LoraProducts& products = model.products(owner.component);
  const auto* parts = products.find(owner.name, owner.kohya);
  if (parts == nullptr) refuse_lora(any, "matches no layer of this model");
  if (!pair.down) refuse_lora(any, "has no down half (lora_A) beside it");
  if (!pair.up) refuse_lora(any, "has no up half (lora_B) beside it");
  for (const TensorEntry* entry : {pair.down, pair.up}) {
    require_floating(*entry);
    if (entry->shape.size() != 2 && entry->shape.size() != 4)
      refuse_lora(*entry,
                  "has shape " + shape_text(entry->shape) + ": two or four dimensions are needed");
  }
  LoraLayer layer{.component = owner.component,
                  .down = pair.down->name,
                  .up = pair.up->name,
                  .alpha = pair.alpha ? pair.alpha->name : "",
                  .known_alpha = metadata.alpha(owner, *pair.down),
                  .rank = pair.down->shape[0],
                  .parts = *parts};
  if (layer.rank == 0) refuse_lora(*pair.down, "is of rank 0");
  if (pair.alpha) {
    require_floating(*pair.alpha);
    if (count(*pair.alpha, 0) != 1)
      refuse_lora(*pair.alpha,
                  "has shape " + shape_text(pair.alpha->shape) + ", one number is needed");
  }
  check_shapes(pair, products, layer);
  return layer;
}

}  // namespace

LoraSpec read_lora_spec(const std::filesystem::path& file, const ModelSpec& model) {
  LoraSpec spec;
  spec.weights = WeightIndex::read_file(file);
  if (spec.weights.tensors().empty()) refuse_lora(file, "has no tensors");
  const LoraTargets layers(model);
  const LoraMetadata metadata(spec.weights);
  for (const auto& [base, pair] : lora_pairs(spec.weights))
    spec.layers.push_back(layer_of(base, pair, layers, metadata));
  return spec;
}

}  // namespace troupe::spec
