#include "models/spec/lora_products.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace troupe::spec {
namespace {

std::string flat(std::string name) {
  std::ranges::replace(name, '.', '_');
  return name;
}

/// CLIP's and BERT's tensors are stored with and without their model's name.
std::string without_root(const std::string& name) {
  for (const std::string_view root : {"text_model.", "text_model_", "bert.", "bert_"}) {
    if (name.starts_with(root)) return name.substr(root.size());
  }
  return name;
}

/// Rows that are looked up are no product.
bool is_table(const std::string& name) {
  for (const char* part : {"token_embedding.", "position_embedding.", "_embeddings.", "shared.",
                           "embed_tokens.", "relative_attention_bias.", "style_embedder."}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

LoraProducts::LoraProducts(const WeightIndex& weights, std::vector<LoraAlias> aliases) {
  for (const TensorEntry& entry : weights.tensors()) {
    constexpr std::string_view kWeight = ".weight";
    if (!entry.name.ends_with(kWeight) || entry.shape.size() < 2 || is_table(entry.name)) continue;
    Size size{entry.shape[0], 1};
    for (std::size_t i = 1; i < entry.shape.size(); ++i)
      size.columns *= entry.shape[i];
    sizes_[entry.name] = size;
    const std::string name = entry.name.substr(0, entry.name.size() - kWeight.size());
    add({without_root(name), {{entry.name, 0, 0, size.rows}}});
  }
  for (auto& alias : aliases)
    add(std::move(alias));
}

const std::vector<LoraPart>* LoraProducts::find(const std::string& name, bool kohya) const {
  const auto& names = kohya ? flat_ : dotted_;
  const auto found = names.find(kohya ? flat(without_root(name)) : without_root(name));
  return found == names.end() ? nullptr : &found->second;
}

LoraProducts::Size LoraProducts::size(const std::string& tensor) const {
  const auto found = sizes_.find(tensor);
  return found == sizes_.end() ? Size{} : found->second;
}

void LoraProducts::add(LoraAlias alias) {
  flat_.emplace(flat(alias.name), alias.parts);
  dotted_.emplace(std::move(alias.name), std::move(alias.parts));
}

}  // namespace troupe::spec
