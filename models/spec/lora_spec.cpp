#include "models/spec/lora_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/numbers.h"
#include "models/spec/config.h"
#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

/// A product's two halves and its alpha in a LoRA's file; null for those that the file lacks.
struct LoraPair {
  const TensorEntry* down = nullptr;
  const TensorEntry* up = nullptr;
  const TensorEntry* alpha = nullptr;
};

/// A component's products by name; weights are matrices [rows, columns].
class LoraProducts {
 public:
  struct Size {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
  };

  LoraProducts() = default;
  LoraProducts(const WeightIndex& weights, std::vector<LoraAlias> aliases);

  /// Returns null if there is no product of that name. kohya's names have '_' for each '.'.
  const std::vector<LoraPart>* find(const std::string& name, bool kohya) const;
  Size size(const std::string& tensor) const;

 private:
  void add(LoraAlias alias);

  std::map<std::string, Size> sizes_;
  std::map<std::string, std::vector<LoraPart>> dotted_, flat_;
};

/// Name of the transformer or U-Net in LoRAs.
constexpr const char* kDenoiser = "transformer";

/// A component, and the rest of the name within it.
struct LoraOwner {
  std::string component;
  std::string name;
  bool kohya = false;
};

/// The components of a model that LoRAs are for. The model must outlive it.
class LoraTargets {
 public:
  explicit LoraTargets(const ModelSpec& model);

  /// Returns the component that the pair `base` (a name from lora_pairs()) belongs to. Throws as
  /// `read_lora_spec` does.
  LoraOwner owner_of(const TensorEntry& entry, const std::string& base) const;
  const LoraProducts& products(const std::string& component) const {
    return products_.at(component);
  }

 private:
  LoraOwner kohya_encoder(const TensorEntry& entry, const std::string& base) const;

  const ModelSpec& model_;
  std::map<std::string, LoraProducts> products_;
};

/// Settings by which a LoRA's layers were made, by component: from the metadata that diffusers
/// writes into the file, or from kAdapterConfig beside a file of PEFT's.
class LoraMetadata {
 public:
  /// Throws as `read_lora_spec` does for what is not supported.
  explicit LoraMetadata(const WeightIndex& weights);

  /// Returns the alpha of a product of `rank` if its component has one. Throws if the settings give
  /// that alpha for another rank.
  std::optional<double> alpha(const LoraOwner& owner, const TensorEntry& down) const;

 private:
  /// PEFT's LoraConfig, as far as it says what is added.
  struct Adapter {
    std::string source;
    double alpha = 8;
    std::map<std::string, double> alphas;  ///< alphas of layers, by pattern of their names
    std::optional<double> rank;
    std::map<std::string, double> ranks;
    bool by_root = false;  ///< alpha is divided by the root of the rank
  };

  Adapter read(const ConfigReader& in, std::string source) const;

  std::map<std::string, Adapter> adapters_;
};

enum class Half { down, up, alpha };

/// End of a tensor's name, and the half of a pair that it marks.
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
  refuse_lora(entry,
              "is of a kind that is not supported: pairs lora_A and lora_B, lora_down and lora_up, "
              "lora.down and lora.up are, and alpha");
}

/// Returns the pairs by the names of their tensors without the endings. Throws as `read_lora_spec`
/// does for a tensor that is not part of a pair, or one that is there twice.
std::map<std::string, LoraPair> lora_pairs(const WeightIndex& weights) {
  std::map<std::string, LoraPair> pairs;
  for (const TensorEntry& entry : weights.tensors()) {
    const Place place = place_of(entry);
    LoraPair& pair = pairs[place.base];
    const TensorEntry*& half = place.half == Half::down ? pair.down
                               : place.half == Half::up ? pair.up
                                                        : pair.alpha;
    if (half != nullptr) refuse_lora(entry, "says the same as tensor " + in_quotes(half->name));
    half = &entry;
  }
  return pairs;
}

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

[[noreturn]] void no_encoder(const TensorEntry& entry) {
  refuse_lora(entry, "is for a text encoder that this model does not have");
}

LoraTargets::LoraTargets(const ModelSpec& model) : model_(model) {
  products_[kDenoiser] = LoraProducts(model.transformer_weights, original_names(model.transformer));
  for (const auto& encoder : model.text_encoders) {
    if (!encoder.absent) products_[encoder.component] = LoraProducts(encoder.weights, {});
  }
}

LoraOwner LoraTargets::owner_of(const TensorEntry& entry, const std::string& base) const {
  for (const std::string_view prefix : {"lora_unet_", "lora_transformer_"}) {
    if (base.starts_with(prefix)) return {kDenoiser, base.substr(prefix.size()), true};
  }
  if (base.starts_with("lora_te")) return kohya_encoder(entry, base);
  if (base.starts_with("lora_")) {
    refuse_lora(entry, "is not known: after lora_ come unet, transformer, te, te1, te2 or te3");
  }
  for (const std::string_view prefix : {"transformer.", "unet.", "diffusion_model.",
                                        "base_model.model.diffusion_model.", "base_model.model."}) {
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

/// te and te1 are the first encoder, te2 the second; te3 is T5, also where only CLIP is beside it.
LoraOwner LoraTargets::kohya_encoder(const TensorEntry& entry, const std::string& base) const {
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

namespace fs = std::filesystem;

/// PEFT begins the names of its files' tensors so, whatever model they are for.
constexpr std::string_view kPeftPrefix = "base_model.model.";

bool is_of_peft(const WeightIndex& weights) {
  return weights.label().filename() == "adapter_model.safetensors" ||
         std::ranges::any_of(weights.tensors(), [](const TensorEntry& entry) {
           return entry.name.starts_with(kPeftPrefix);
         });
}

/// PEFT's patterns are the ends of names, after a ^ whole names; other regular expressions are
/// refused.
std::map<std::string, double> patterns(const ConfigReader& in, std::string_view key) {
  std::map<std::string, double> known;
  if (!in.has_value(key)) {
    in.harmless({key});
    return known;
  }
  const auto& value = in.raw(key);
  if (!value.is_object()) in.refuse(key, "must be an object");
  for (const auto& [pattern, number] : value.items()) {
    if (pattern.find_first_of("*+?()[]{}|^$\\", pattern.starts_with('^') ? 1 : 0) !=
            std::string::npos ||
        !number.is_number() || !std::isfinite(number.get<double>()))
      in.refuse(key, "has a pattern that is not supported: " + in_quotes(pattern));
    known[pattern] = number.get<double>();
  }
  return known;
}

/// The pattern that fits a layer's name; of several the first by the alphabet, as PEFT sorts them
/// when it writes them.
double by_pattern(const std::map<std::string, double>& known, const std::string& name,
                  double otherwise) {
  auto first = known.find("^" + name);
  for (std::size_t at = 0; at != std::string::npos;) {
    const auto found = known.find(name.substr(at));
    if (found != known.end() && (first == known.end() || found->first < first->first))
      first = found;
    at = name.find('.', at);
    if (at != std::string::npos) ++at;
  }
  return first == known.end() ? otherwise : first->second;
}

/// Settings that say how an adapter was trained, or of which base, and change nothing in what is
/// added.
void accept_training(const ConfigReader& in) {
  // A product by a Linear layer is never transposed: PEFT switches fan_in_fan_out off there.
  in.harmless({"auto_mapping",      "base_model_name_or_path",
               "corda_config",      "ensure_weight_tying",
               "eva_config",        "exclude_modules",
               "fan_in_fan_out",    "inference_mode",
               "layers_pattern",    "layers_to_transform",
               "loftq_config",      "lora_dropout",
               "lora_ga_config",    "megatron_config",
               "megatron_core",     "peft_version",
               "qalora_group_size", "revision",
               "runtime_config",    "target_modules",
               "task_type"});
}

/// Settings that make something else than W + scale · up · down of an adapter.
void refuse_other_kinds(const ConfigReader& in) {
  for (const char* key : {"use_dora", "lora_bias", "use_qalora"}) {
    if (in.optional_boolean(key).value_or(false)) in.refuse(key, "is not supported");
  }
  for (const char* key :
       {"alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication",
        "modules_to_save", "monteclora_config", "target_parameters", "trainable_token_indices",
        "use_bdlora", "velora_config"}) {
    const bool empty = !in.has_value(key) || in.raw(key).empty();
    if (!empty) in.refuse(key, "is not supported");
    in.harmless({key});
  }
  in.choice_or("peft_type", "LORA", {"LORA"});
  in.choice_or("bias", "none", {"none"});
  // Others begin with weights that are not the folder's.
  if (in.has_value("init_lora_weights") && in.raw("init_lora_weights").is_string())
    in.choice_or("init_lora_weights", "", {"gaussian", "eva", "orthogonal"});
  in.harmless({"init_lora_weights"});
}

LoraMetadata::LoraMetadata(const WeightIndex& weights) {
  const fs::path& file = weights.label();
  const auto found = weights.metadata().find("lora_adapter_metadata");
  if (found != weights.metadata().end()) {
    const auto all = parse_json(found->second, file);
    if (!all.is_object()) refuse_lora(file, "metadata lora_adapter_metadata is not a JSON object");
    std::map<std::string, nlohmann::json> components;
    for (const auto& [key, value] : all.items()) {
      const auto dot = key.find('.');
      if (dot == std::string::npos)
        refuse_lora(file, "metadata " + in_quotes(key) + " is of no component");
      components[key.substr(0, dot)][key.substr(dot + 1)] = value;
    }
    for (const auto& [component, settings] : components) {
      const ConfigReader in(settings.dump(), file.string() + ": metadata of " + component);
      adapters_[component == "unet" ? kDenoiser : component] = read(in, "the file's metadata");
    }
    return;
  }
  const fs::path beside = file.parent_path() / kAdapterConfig;
  if (is_of_peft(weights) && is_file(beside))
    adapters_[kDenoiser] = read(ConfigReader::read(beside), kAdapterConfig);
}

LoraMetadata::Adapter LoraMetadata::read(const ConfigReader& in, std::string source) const {
  Adapter adapter;
  adapter.source = std::move(source);
  adapter.alpha = in.number_or("lora_alpha", adapter.alpha);
  if (!std::isfinite(adapter.alpha)) in.refuse("lora_alpha", "must be finite");
  adapter.alphas = patterns(in, "alpha_pattern");
  adapter.rank = in.optional_number("r");
  adapter.ranks = patterns(in, "rank_pattern");
  adapter.by_root = in.optional_boolean("use_rslora").value_or(false);
  refuse_other_kinds(in);
  accept_training(in);
  in.finish();
  return adapter;
}

std::optional<double> LoraMetadata::alpha(const LoraOwner& owner, const TensorEntry& down) const {
  const auto found = adapters_.find(owner.component);
  if (found == adapters_.end()) return std::nullopt;
  const Adapter& adapter = found->second;
  const auto rank = static_cast<double>(down.shape[0]);
  const double said = by_pattern(adapter.ranks, owner.name, adapter.rank.value_or(rank));
  if (said != rank)
    refuse_lora(down, "is of rank " + number_text(rank) + ", but " + adapter.source + " says " +
                          number_text(said));
  const double alpha = by_pattern(adapter.alphas, owner.name, adapter.alpha);
  return adapter.by_root ? alpha * std::sqrt(rank) : alpha;
}

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

std::string in_quotes(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

void refuse_lora(const std::filesystem::path& file, const std::string& why) {
  throw std::runtime_error("[load_lora] " + file.string() + ": " + why);
}

void refuse_lora(const TensorEntry& entry, const std::string& why) {
  refuse_lora(entry.file, "tensor " + in_quotes(entry.name) + " " + why);
}

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
