#include "models/spec/lora_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

constexpr const char* kDenoiser = "transformer";

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("[load_lora] " + file.string() + ": " + why);
}

/// Whatever it holds, on one line.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

[[noreturn]] void fail(const TensorEntry& entry, const std::string& why) {
  fail(entry.file, "tensor " + quoted(entry.name) + " " + why);
}

enum class Half { down, up, alpha };

/// Which half of which pair a tensor is, by the end of its name.
struct Ending {
  std::string_view text;
  Half half;
};

constexpr std::array<Ending, 9> kEndings = {{{".lora_A.weight", Half::down},
                                             {".lora_B.weight", Half::up},
                                             {".lora_down.weight", Half::down},
                                             {".lora_up.weight", Half::up},
                                             {".lora.down.weight", Half::down},
                                             {".lora.up.weight", Half::up},
                                             {".lora_linear_layer.down.weight", Half::down},
                                             {".lora_linear_layer.up.weight", Half::up},
                                             {".alpha", Half::alpha}}};

struct Place {
  std::string base;  // the name without its ending
  Half half;
};

/// Attention processors' own: "attn1.processor.to_out_lora.down" is "attn1.to_out.0".
std::optional<Place> of_processor(const std::string& name) {
  for (const auto& [ending, half] : {std::pair{std::string_view("_lora.down.weight"), Half::down},
                                     std::pair{std::string_view("_lora.up.weight"), Half::up}}) {
    const std::string_view marker = ".processor.";
    const auto at = name.rfind(marker);
    if (!name.ends_with(ending) || at == std::string::npos) continue;
    std::string product = name.substr(at + marker.size());
    product.resize(product.size() - ending.size());
    if (product == "to_out") product += ".0";
    return Place{name.substr(0, at + 1) + product, half};
  }
  return std::nullopt;
}

Place place_of(const TensorEntry& entry) {
  if (auto place = of_processor(entry.name)) return *place;
  for (const auto& [text, half] : kEndings) {
    if (entry.name.size() > text.size() && entry.name.ends_with(text))
      return {entry.name.substr(0, entry.name.size() - text.size()), half};
  }
  fail(entry,
       "is of a kind that is not supported: pairs lora_A and lora_B, lora_down and lora_up, "
       "lora.down and lora.up are, and alpha");
}

/// A component's products by name; weights are matrices [rows, columns].
class Products {
 public:
  struct Size {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
  };

  Products() = default;
  Products(const WeightIndex& weights, std::vector<LoraAlias> aliases) {
    for (const TensorEntry& entry : weights.tensors()) {
      constexpr std::string_view kWeight = ".weight";
      if (!entry.name.ends_with(kWeight) || entry.shape.size() < 2 || is_table(entry.name))
        continue;
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

  /// Null where there is none of that name. kohya's names have '_' for each '.'.
  const std::vector<LoraPart>* find(const std::string& name, bool kohya) const {
    const auto& names = kohya ? flat_ : dotted_;
    const auto found = names.find(kohya ? flat(without_root(name)) : without_root(name));
    return found == names.end() ? nullptr : &found->second;
  }
  Size size(const std::string& tensor) const {
    const auto found = sizes_.find(tensor);
    return found == sizes_.end() ? Size{} : found->second;
  }

 private:
  static std::string flat(std::string name) {
    std::ranges::replace(name, '.', '_');
    return name;
  }
  /// CLIP's and BERT's tensors are stored with and without their model's name.
  static std::string without_root(const std::string& name) {
    for (const std::string_view root : {"text_model.", "text_model_", "bert.", "bert_"}) {
      if (name.starts_with(root)) return name.substr(root.size());
    }
    return name;
  }
  /// Rows that are looked up are no product.
  static bool is_table(const std::string& name) {
    for (const char* part : {"token_embedding.", "position_embedding.", "_embeddings.", "shared.",
                             "embed_tokens.", "relative_attention_bias.", "style_embedder."}) {
      if (name.find(part) != std::string::npos) return true;
    }
    return false;
  }
  void add(LoraAlias alias) {
    flat_.emplace(flat(alias.name), alias.parts);
    dotted_.emplace(std::move(alias.name), std::move(alias.parts));
  }

  std::map<std::string, Size> sizes_;
  std::map<std::string, std::vector<LoraPart>> dotted_, flat_;
};

/// A component, and what is left of the name within it.
struct Owner {
  std::string component;
  std::string name;
  bool kohya = false;
};

class Model {
 public:
  explicit Model(const ModelSpec& model) : model_(model) {
    products_[kDenoiser] = Products(model.transformer_weights, original_names(model.transformer));
    for (const auto& encoder : model.text_encoders) {
      if (!encoder.absent) products_[encoder.component] = Products(encoder.weights, {});
    }
  }

  Owner owner_of(const TensorEntry& entry, const std::string& base) const {
    for (const std::string_view prefix : {"lora_unet_", "lora_transformer_"}) {
      if (base.starts_with(prefix)) return {kDenoiser, base.substr(prefix.size()), true};
    }
    if (base.starts_with("lora_te")) return kohya_encoder(entry, base);
    if (base.starts_with("lora_")) {
      fail(entry, "is not known: after lora_ come unet, transformer, te, te1, te2 or te3");
    }
    for (const std::string_view prefix :
         {"transformer.", "unet.", "diffusion_model.", "base_model.model.diffusion_model.",
          "base_model.model."}) {
      if (base.starts_with(prefix)) return {kDenoiser, base.substr(prefix.size())};
    }
    for (const char* component : {"text_encoder", "text_encoder_2", "text_encoder_3"}) {
      const std::string prefix = std::string(component) + ".";
      if (!base.starts_with(prefix)) continue;
      if (!products_.contains(component)) no_encoder(entry);
      return {component, base.substr(prefix.size())};
    }
    return {kDenoiser, base};
  }

  const Products& products(const std::string& component) const { return products_.at(component); }

 private:
  [[noreturn]] static void no_encoder(const TensorEntry& entry) {
    fail(entry, "is for a text encoder that this model does not have");
  }
  /// te and te1 are the first encoder, te2 the second; te3 is T5, also where only CLIP is beside
  /// it.
  Owner kohya_encoder(const TensorEntry& entry, const std::string& base) const {
    const auto end = base.find('_', std::string_view("lora_").size());
    if (end == std::string::npos) no_encoder(entry);
    const std::string which = base.substr(5, end - 5);
    const auto& encoders = model_.text_encoders;
    std::size_t index = encoders.size();
    if (which == "te" || which == "te1") index = 0;
    if (which == "te2") index = 1;
    if (which == "te3") index = std::min<std::size_t>(2, encoders.size() - 1);
    if (index >= encoders.size() || encoders[index].absent) no_encoder(entry);
    return {encoders[index].component, base.substr(end + 1), true};
  }

  const ModelSpec& model_;
  std::map<std::string, Products> products_;
};

/// What diffusers writes into a file's metadata: how the adapters of its components were made.
class Metadata {
 public:
  explicit Metadata(const WeightIndex& weights) : file_(weights.label()) {
    const auto found = weights.metadata().find("lora_adapter_metadata");
    if (found == weights.metadata().end()) return;
    json_ = parse_json(found->second, file_);
    if (!json_.is_object()) fail(file_, "metadata lora_adapter_metadata is not a JSON object");
    for (const auto& [key, value] : json_.items()) {
      for (const char* unsupported :
           {".use_dora", ".use_rslora", ".lora_bias", ".fan_in_fan_out"}) {
        if (key.ends_with(unsupported) && value == true)
          fail(file_, "metadata " + quoted(key) + " = true is not supported");
      }
    }
  }

  /// The alpha of a product, where the metadata have one for its component.
  std::optional<double> alpha(const Owner& owner) const {
    if (!json_.is_object()) return std::nullopt;
    for (const std::string& component : {owner.component, std::string("unet")}) {
      if (component == "unet" && owner.component != kDenoiser) continue;
      const std::string key = component + ".lora_alpha";
      if (!json_.contains(key)) continue;
      if (!json_[key].is_number() || !std::isfinite(json_[key].get<double>()))
        fail(file_, "metadata " + key + " is not a number");
      return by_pattern(component + ".alpha_pattern", owner.name)
          .value_or(json_[key].get<double>());
    }
    return std::nullopt;
  }

 private:
  /// PEFT's patterns are the ends of names; regular expressions are refused.
  std::optional<double> by_pattern(const std::string& key, const std::string& name) const {
    if (!json_.contains(key) || !json_[key].is_object()) return std::nullopt;
    for (const auto& [pattern, value] : json_[key].items()) {
      if (pattern.find_first_of("*+?()[]{}|^$\\") != std::string::npos || !value.is_number() ||
          !std::isfinite(value.get<double>()))
        fail(file_, "metadata " + key + " has a pattern that is not supported: " + quoted(pattern));
      if (name == pattern || name.ends_with("." + pattern)) return value.get<double>();
    }
    return std::nullopt;
  }

  std::filesystem::path file_;
  nlohmann::json json_;
};

struct Pair {
  const TensorEntry* down = nullptr;
  const TensorEntry* up = nullptr;
  const TensorEntry* alpha = nullptr;
};

std::map<std::string, Pair> pairs_of(const WeightIndex& weights) {
  std::map<std::string, Pair> pairs;
  for (const TensorEntry& entry : weights.tensors()) {
    const Place place = place_of(entry);
    Pair& pair = pairs[place.base];
    const TensorEntry*& half = place.half == Half::down ? pair.down
                               : place.half == Half::up ? pair.up
                                                        : pair.alpha;
    if (half != nullptr) fail(entry, "says the same as tensor " + quoted(half->name));
    half = &entry;
  }
  return pairs;
}

std::int64_t count(const TensorEntry& entry, std::size_t from) {
  std::int64_t values = 1;
  for (std::size_t i = from; i < entry.shape.size(); ++i)
    values *= entry.shape[i];
  return values;
}

void require_floating(const TensorEntry& entry) {
  if (entry.bytes() == 0) fail(entry, "is empty");
  const auto type = entry.dtype;
  if (type != Dtype::float32 && type != Dtype::bfloat16 && type != Dtype::float16 &&
      type != Dtype::float64)
    fail(entry, "has dtype " + std::string(dtype_name(type)) + ", a floating one is needed");
}

void check_shapes(const Pair& pair, const Products& products, const LoraLayer& layer) {
  std::int64_t rows = 0;
  for (const LoraPart& part : layer.parts) {
    const auto size = products.size(part.tensor);
    rows += part.rows;
    if (size.rows == 0 || part.to + part.rows > size.rows)
      fail(*pair.up, "is for tensor \"" + part.tensor + "\", which this model does not have so");
    if (count(*pair.down, 1) != size.columns) {
      fail(*pair.down, "has shape " + shape_text(pair.down->shape) + ", tensor \"" + part.tensor +
                           "\" takes " + std::to_string(size.columns) + " inputs");
    }
  }
  if (pair.up->shape[0] != rows) {
    fail(*pair.up, "has shape " + shape_text(pair.up->shape) + ", tensor \"" +
                       layer.parts.front().tensor + "\" wants " + std::to_string(rows) + " rows");
  }
  if (count(*pair.up, 1) != layer.rank) {
    fail(*pair.up, "has shape " + shape_text(pair.up->shape) + ", but tensor \"" + pair.down->name +
                       "\" is of rank " + std::to_string(layer.rank));
  }
}

LoraLayer layer_of(const std::string& base, const Pair& pair, const Model& model,
                   const Metadata& metadata) {
  const TensorEntry& any = pair.down ? *pair.down : pair.up ? *pair.up : *pair.alpha;
  const Owner owner = model.owner_of(any, base);
  const Products& products = model.products(owner.component);
  const auto* parts = products.find(owner.name, owner.kohya);
  if (parts == nullptr) fail(any, "matches no layer of this model");
  if (!pair.down) fail(any, "has no down half (lora_A) beside it");
  if (!pair.up) fail(any, "has no up half (lora_B) beside it");
  for (const TensorEntry* entry : {pair.down, pair.up}) {
    require_floating(*entry);
    if (entry->shape.size() != 2 && entry->shape.size() != 4)
      fail(*entry, "has shape " + shape_text(entry->shape) + ": two or four dimensions are needed");
  }
  LoraLayer layer{.component = owner.component,
                  .down = pair.down->name,
                  .up = pair.up->name,
                  .alpha = pair.alpha ? pair.alpha->name : "",
                  .known_alpha = metadata.alpha(owner),
                  .rank = pair.down->shape[0],
                  .parts = *parts};
  if (layer.rank == 0) fail(*pair.down, "is of rank 0");
  if (pair.alpha) {
    require_floating(*pair.alpha);
    if (count(*pair.alpha, 0) != 1)
      fail(*pair.alpha, "has shape " + shape_text(pair.alpha->shape) + ", one number is needed");
  }
  check_shapes(pair, products, layer);
  return layer;
}

}  // namespace

LoraSpec read_lora_spec(const std::filesystem::path& file, const ModelSpec& model) {
  LoraSpec spec;
  spec.weights = WeightIndex::read_file(file);
  if (spec.weights.tensors().empty()) fail(file, "has no tensors");
  const Model layers(model);
  const Metadata metadata(spec.weights);
  for (const auto& [base, pair] : pairs_of(spec.weights))
    spec.layers.push_back(layer_of(base, pair, layers, metadata));
  return spec;
}

}  // namespace troupe::spec
