#include "models/spec/lora_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "base/numbers.h"
#include "models/spec/config.h"
#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

/// Tensors of a file that are for one product.
using LoraGroup = std::map<LoraRole, const TensorEntry*>;

/// Ends of the names of a product's tensors.
constexpr std::string_view kWeight = ".weight", kBias = ".bias";

/// A component's products by name, and norms as such of one column; weights are matrices [rows,
/// columns].
class LoraProducts {
 public:
  struct Size {
    std::int64_t rows = 0;
    std::int64_t columns = 0;
  };

  LoraProducts() = default;
  LoraProducts(const WeightIndex& weights, std::vector<LoraAlias> aliases);

  /// Returns null if there is no product of that name. Flat names have '_' for each '.'.
  const std::vector<LoraPart>* find(const std::string& name, bool is_flat) const;
  /// Returns the size of a weight or bias; of none that the component lacks.
  Size size(const std::string& tensor) const;

 private:
  void add(LoraAlias alias);

  std::map<std::string, Size> sizes_;
  std::map<std::string, std::vector<LoraPart>> dotted_, flat_;
};

/// A component, and the rest of the name within it; or why there is none.
struct LoraOwner {
  std::string component;
  std::string name;
  bool flat = false;     ///< '_' stands for '.'
  std::string why = {};  ///< "" where there is one
};

/// The components of a model that LoRAs are for. The model must outlive it.
class LoraTargets {
 public:
  explicit LoraTargets(const ModelSpec& model);

  /// Returns the component that the group `base` (a name from lora_groups()) belongs to.
  LoraOwner owner_of(const std::string& base) const;
  const LoraProducts& products(const std::string& component) const {
    return products_.at(component);
  }

 private:
  LoraOwner kohya_encoder(const std::string& base) const;
  LoraOwner comfy_encoder(const std::string& rest) const;

  const ModelSpec& model_;
  std::map<std::string, LoraProducts> products_;
};

/// Settings by which a LoRA's layers were made, by component: from the metadata that diffusers
/// writes into the file, or from kAdapterConfig beside a file of PEFT's.
class LoraMetadata {
 public:
  /// Throws as `read_lora_spec` does for what is not supported.
  explicit LoraMetadata(const WeightIndex& weights);

  /// Gives the layer the alpha that its component has, if any. Throws if the settings give that for
  /// another rank, or if they call for DoRA and the layer has none; `entry` is the tensor to name.
  void set_alpha(LoraLayer& layer, const std::string& name, const TensorEntry& entry) const;

 private:
  /// PEFT's LoraConfig, as far as it says what is added.
  struct Adapter {
    std::string source;
    double alpha = 8;
    std::map<std::string, double> alphas;  ///< alphas of layers, by pattern of their names
    std::optional<double> rank;
    std::map<std::string, double> ranks;
    bool by_root = false;  ///< alpha is divided by the root of the rank
    bool dora = false;     ///< each product has lengths of its rows
  };

  Adapter read(const ConfigReader& in, std::string source) const;

  std::map<std::string, Adapter> adapters_;
};

/// End of a tensor's name, and the part that it marks.
struct Ending {
  std::string_view text;
  LoraRole role;
};

constexpr auto kEndings =
    std::to_array<Ending>({{".lora_A.weight", LoraRole::down},
                           {".lora_B.weight", LoraRole::up},
                           {".lora_down.weight", LoraRole::down},
                           {".lora_up.weight", LoraRole::up},
                           {".lora.down.weight", LoraRole::down},
                           {".lora.up.weight", LoraRole::up},
                           {".lora_linear_layer.down.weight", LoraRole::down},
                           {".lora_linear_layer.up.weight", LoraRole::up},
                           {".lora_mid.weight", LoraRole::mid},
                           {".lora_B.bias", LoraRole::up_bias},
                           {".lora_up.bias", LoraRole::up_bias},
                           {".alpha", LoraRole::alpha},
                           {".dora_scale", LoraRole::magnitude},
                           {".lora_magnitude_vector", LoraRole::magnitude},
                           {".lora_magnitude_vector.weight", LoraRole::magnitude},
                           {".hada_w1_a", LoraRole::hada_w1_a},
                           {".hada_w1_b", LoraRole::hada_w1_b},
                           {".hada_w2_a", LoraRole::hada_w2_a},
                           {".hada_w2_b", LoraRole::hada_w2_b},
                           {".hada_t1", LoraRole::hada_t1},
                           {".hada_t2", LoraRole::hada_t2},
                           {".lokr_w1", LoraRole::lokr_w1},
                           {".lokr_w1_a", LoraRole::lokr_w1_a},
                           {".lokr_w1_b", LoraRole::lokr_w1_b},
                           {".lokr_w2", LoraRole::lokr_w2},
                           {".lokr_w2_a", LoraRole::lokr_w2_a},
                           {".lokr_w2_b", LoraRole::lokr_w2_b},
                           {".lokr_t2", LoraRole::lokr_t2},
                           {".diff", LoraRole::difference},
                           {".diff_b", LoraRole::bias_difference},
                           {".w_norm", LoraRole::difference},
                           {".b_norm", LoraRole::bias_difference},
                           // XLabs': "….processor.qkv_lora1.down.weight"
                           {".down.weight", LoraRole::down},
                           {".up.weight", LoraRole::up}});

struct Place {
  std::string base;  // the name without its ending
  LoraRole role;
};

/// Attention processors' own: "attn1.processor.to_out_lora.down" is "attn1.to_out.0".
std::optional<Place> of_processor(const std::string& name) {
  for (const auto& [ending, role] :
       {std::pair{std::string_view("_lora.down.weight"), LoraRole::down},
        std::pair{std::string_view("_lora.up.weight"), LoraRole::up}}) {
    const std::string_view marker = ".processor.to_";
    const auto at = name.rfind(marker);
    if (!name.ends_with(ending) || at == std::string::npos) continue;
    std::string product = name.substr(at + marker.size() - 3);
    product.resize(product.size() - ending.size());
    if (product == "to_out") product += ".0";
    return Place{name.substr(0, at + 1) + product, role};
  }
  return std::nullopt;
}

/// Returns the name without what PEFT puts into those of a module: the adapter's name where it is
/// the usual one, and the layer that is wrapped.
std::string without_wrapping(std::string name) {
  for (const std::string_view word : {".default", ".base_layer"}) {
    for (auto at = name.find(word); at != std::string::npos; at = name.find(word, at)) {
      const auto end = at + word.size();
      if (end == name.size() || name[end] == '.')
        name.erase(at, word.size());
      else
        at = end;
    }
  }
  return name;
}

/// Returns the product that a tensor is for, and the part that it plays; nothing for a name of
/// another form.
std::optional<Place> place_of(const std::string& tensor) {
  const std::string name = without_wrapping(tensor);
  if (auto place = of_processor(name)) return place;
  for (const auto& [text, role] : kEndings) {
    if (name.size() > text.size() && name.ends_with(text))
      return Place{name.substr(0, name.size() - text.size()), role};
  }
  return std::nullopt;
}

/// Tensors that are not used, in the order in which they were found.
class Unused {
 public:
  void add(const TensorEntry& entry, const std::string& why) {
    if (count_++ > 0) return;
    first_ = &entry;
    why_ = why;
  }
  void add(const LoraGroup& group, const std::string& why) {
    for (const auto& [role, entry] : group)
      add(*entry, why);
  }

  /// Throws as `read_lora_spec` does: none of the file's tensors is used.
  [[noreturn]] void refuse_all() const {
    refuse_lora(*first_, why_ + (count_ > 1 ? fmt::format("; none of the file's {} tensors is "
                                                          "used",
                                                          count_)
                                            : ""));
  }
  std::string text(const WeightIndex& weights) const {
    if (count_ == 0) return "";
    return fmt::format("{}: {} of {} tensors {} not used: tensor {} {}{}", weights.label().string(),
                       count_, weights.tensors().size(), count_ > 1 ? "are" : "is",
                       in_quotes(first_->name), why_, count_ > 1 ? ", …" : "");
  }

 private:
  std::size_t count_ = 0;
  const TensorEntry* first_ = nullptr;
  std::string why_;
};

/// Returns the file's tensors by the names of their products. Throws as `read_lora_spec` does for
/// one that is there twice.
std::map<std::string, LoraGroup> lora_groups(const WeightIndex& weights, Unused& unused) {
  std::map<std::string, LoraGroup> groups;
  for (const TensorEntry& entry : weights.tensors()) {
    const auto place = place_of(entry.name);
    if (!place) {
      unused.add(entry, "is of no kind that is known");
      continue;
    }
    const auto [at, is_new] = groups[place->base].emplace(place->role, &entry);
    if (!is_new) refuse_lora(entry, "says the same as tensor " + in_quotes(at->second->name));
  }
  return groups;
}

std::string flat(std::string name) {
  std::ranges::replace(name, '.', '_');
  return name;
}

/// Text encoders' tensors are stored with and without their model's name.
std::string without_root(const std::string& name) {
  for (const std::string_view root :
       {"text_model.", "text_model_", "bert.", "bert_", "model.layers", "model_layers"}) {
    if (!name.starts_with(root)) continue;
    return name.substr(root.ends_with("layers") ? root.size() - 6 : root.size());
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
    if (entry.shape.empty() || is_table(entry.name)) continue;
    Size size{entry.shape[0], 1};
    for (std::size_t i = 1; i < entry.shape.size(); ++i)
      size.columns *= entry.shape[i];
    sizes_[entry.name] = size;
    if (!entry.name.ends_with(kWeight)) continue;
    const std::string name = entry.name.substr(0, entry.name.size() - kWeight.size());
    add({without_root(name), {{entry.name, 0, 0, size.rows}}});
  }
  for (auto& alias : aliases)
    add(std::move(alias));
}

const std::vector<LoraPart>* LoraProducts::find(const std::string& name, bool is_flat) const {
  if (!is_flat) {
    const auto found = dotted_.find(without_root(name));
    if (found != dotted_.end()) return &found->second;
  }
  // Some programs write dots where a name itself has '_'.
  const auto found = flat_.find(flat(without_root(name)));
  return found == flat_.end() ? nullptr : &found->second;
}

LoraProducts::Size LoraProducts::size(const std::string& tensor) const {
  const auto found = sizes_.find(tensor);
  return found == sizes_.end() ? Size{} : found->second;
}

void LoraProducts::add(LoraAlias alias) {
  flat_.emplace(flat(alias.name), alias.parts);
  dotted_.emplace(std::move(alias.name), std::move(alias.parts));
}

LoraOwner no_encoder() {
  return {
      .component = {}, .name = {}, .why = "is for a text encoder that this model does not have"};
}

LoraTargets::LoraTargets(const ModelSpec& model) : model_(model) {
  products_[kDenoiser] = LoraProducts(model.transformer_weights, original_names(model.transformer));
  for (const auto& encoder : model.text_encoders) {
    if (!encoder.absent) products_[encoder.component] = LoraProducts(encoder.weights, {});
  }
}

LoraOwner LoraTargets::owner_of(const std::string& base) const {
  for (const std::string_view prefix : {"lora_unet_", "lora_transformer_", "lycoris_"}) {
    if (base.starts_with(prefix)) return {kDenoiser, base.substr(prefix.size()), true};
  }
  if (base.starts_with("lora_te")) return kohya_encoder(base);
  if (base.starts_with("lora_"))
    return {.component = {},
            .name = {},
            .why = "is not known: after lora_ come unet, transformer, te, te1, te2 or te3"};
  for (const char* component : {"text_encoder", "text_encoder_2", "text_encoder_3"}) {
    const std::string prefix = std::string(component) + ".";
    if (!base.starts_with(prefix)) continue;
    if (!products_.contains(component)) return no_encoder();
    return {component, base.substr(prefix.size())};
  }
  constexpr std::string_view kComfy = "text_encoders.";
  if (base.starts_with(kComfy)) return comfy_encoder(base.substr(kComfy.size()));
  // Several of these stand one before the other.
  std::string name = base;
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view prefix :
         {"base_model.model.", "transformer.", "unet.", "diffusion_model.", "model.diffusion_"}) {
      if (!name.starts_with(prefix)) continue;
      name.erase(0,
                 prefix == "model.diffusion_" ? std::string_view("model.").size() : prefix.size());
      again = true;
    }
  }
  return {kDenoiser, name};
}

/// te and te1 are the first encoder, te2 the second; te3 is T5, also where only CLIP is beside it.
LoraOwner LoraTargets::kohya_encoder(const std::string& base) const {
  const auto end = base.find('_', std::string_view("lora_").size());
  if (end == std::string::npos) return no_encoder();
  const std::string which = base.substr(5, end - 5);
  const auto& encoders = model_.text_encoders;
  std::size_t index = encoders.size();
  if (which == "te" || which == "te1") index = 0;
  if (which == "te2") index = 1;
  if (which == "te3") index = std::min<std::size_t>(2, encoders.size() - 1);
  if (index >= encoders.size() || encoders[index].absent) return no_encoder();
  return {encoders[index].component, base.substr(end + 1), true};
}

/// ComfyUI calls encoders by what they are: `clip_l.transformer.`, `t5xxl.transformer.`.
LoraOwner LoraTargets::comfy_encoder(const std::string& rest) const {
  const auto end = rest.find(".transformer.");
  if (end == std::string::npos) return no_encoder();
  const std::string which = rest.substr(0, end);
  std::size_t clips_before = which == "clip_g" ? 1 : 0;
  for (const auto& encoder : model_.text_encoders) {
    const bool is_clip = std::holds_alternative<ClipSpec>(encoder.config);
    const bool is_t5 = std::holds_alternative<T5Spec>(encoder.config);
    const bool fits = which.starts_with("clip_")              ? is_clip
                      : which.find("t5") != std::string::npos ? is_t5
                                                              : !is_clip && !is_t5;
    if (!fits || encoder.absent) continue;
    if (is_clip && clips_before > 0) {
      --clips_before;
      continue;
    }
    return {encoder.component, rest.substr(end + std::string_view(".transformer.").size())};
  }
  return no_encoder();
}

namespace fs = std::filesystem;

/// PEFT begins the names of its files' tensors so, whatever model they are for.
constexpr std::string_view kPeftPrefix = "base_model.model.";

bool is_of_peft(const WeightIndex& weights) {
  return weights.label().stem() == "adapter_model" ||
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
  in.harmless({"auto_mapping",        "base_model_name_or_path",
               "corda_config",        "ensure_weight_tying",
               "eva_config",          "exclude_modules",
               "fan_in_fan_out",      "inference_mode",
               "layers_pattern",      "layers_to_transform",
               "loftq_config",        "lora_dropout",
               "lora_ga_config",      "megatron_config",
               "megatron_core",       "peft_version",
               "qalora_group_size",   "revision",
               "runtime_config",      "target_modules",
               "task_type",           "decompose_both",
               "decompose_factor",    "init_weights",
               "lora_bias",           "module_dropout",
               "rank_dropout",        "rank_dropout_scale",
               "use_effective_conv2d"});
}

/// Settings that make something else than W + scale · up · down of an adapter.
void refuse_other_kinds(const ConfigReader& in) {
  if (in.optional_boolean("use_qalora").value_or(false))
    in.refuse("use_qalora", "is not supported");
  for (const char* key :
       {"alora_invocation_tokens", "arrow_config", "kasa_config", "layer_replication",
        "modules_to_save", "monteclora_config", "target_parameters", "trainable_token_indices",
        "use_bdlora", "velora_config"}) {
    const bool empty = !in.has_value(key) || in.raw(key).empty();
    if (!empty) in.refuse(key, "is not supported");
    in.harmless({key});
  }
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
  const auto kind = in.choice_or("peft_type", "LORA", {"LORA", "LOHA", "LOKR"});
  const char* const key = kind == "LORA" ? "lora_alpha" : "alpha";
  adapter.alpha = in.number_or(key, adapter.alpha);
  if (!std::isfinite(adapter.alpha)) in.refuse(key, "must be finite");
  adapter.alphas = patterns(in, "alpha_pattern");
  adapter.rank = in.optional_number("r");
  adapter.ranks = patterns(in, "rank_pattern");
  adapter.by_root = in.optional_boolean("use_rslora").value_or(false);
  adapter.dora = in.optional_boolean("use_dora").value_or(false);
  refuse_other_kinds(in);
  accept_training(in);
  in.finish();
  return adapter;
}

constexpr double kMostRank = 1e6;

void LoraMetadata::set_alpha(LoraLayer& layer, const std::string& name,
                             const TensorEntry& entry) const {
  const auto found = adapters_.find(layer.component);
  if (found == adapters_.end() || layer.kind == LoraKind::difference) return;
  const Adapter& adapter = found->second;
  const auto own = static_cast<double>(layer.rank);
  const double rank = by_pattern(adapter.ranks, name, adapter.rank.value_or(own));
  // A Kronecker product of whole matrices has no rank of its own.
  if (layer.rank == 0) {
    if (!(rank >= 1 && rank <= kMostRank))
      refuse_lora(entry, "has the rank " + number_text(rank) + " by " + adapter.source);
    layer.rank = static_cast<std::int64_t>(rank);
  }
  if (static_cast<double>(layer.rank) != rank)
    refuse_lora(entry, "is of rank " + number_text(own) + ", but " + adapter.source + " says " +
                           number_text(rank));
  if (adapter.dora && layer.tensor(LoraRole::magnitude).empty())
    refuse_lora(entry,
                "has no lora_magnitude_vector beside it, but " + adapter.source + " says use_dora");
  const double alpha = by_pattern(adapter.alphas, name, adapter.alpha);
  layer.known_alpha = adapter.by_root ? alpha * std::sqrt(rank) : alpha;
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

/// Tensors of one product, of which those that are needed are there.
class GroupReader {
 public:
  GroupReader(const LoraGroup& group, const LoraProducts& products,
              const std::vector<LoraPart>& parts)
      : group_(group), products_(products), parts_(parts) {
    for (const LoraPart& part : parts)
      rows_ += part.rows;
    columns_ = products.size(parts.front().tensor).columns;
  }

  /// Returns what is added to the weight; nothing where the group has none of it.
  std::optional<LoraLayer> weight() const {
    std::vector<LoraKind> kinds;
    if (has(LoraRole::down) || has(LoraRole::up)) kinds.push_back(LoraKind::low_rank);
    if (any(LoraRole::hada_w1_a, LoraRole::hada_t2)) kinds.push_back(LoraKind::hadamard);
    if (any(LoraRole::lokr_w1, LoraRole::lokr_t2)) kinds.push_back(LoraKind::kronecker);
    if (has(LoraRole::difference)) kinds.push_back(LoraKind::difference);
    if (kinds.empty()) return std::nullopt;
    if (kinds.size() > 1)
      refuse_lora(first(), "is one of several kinds of additions to one product");
    LoraLayer layer;
    layer.kind = kinds.front();
    layer.parts = parts_;
    check_parts();
    switch (layer.kind) {
      case LoraKind::low_rank:
        read_low_rank(layer);
        break;
      case LoraKind::hadamard:
        read_hadamard(layer);
        break;
      case LoraKind::kronecker:
        read_kronecker(layer);
        break;
      case LoraKind::difference:
        use(layer, LoraRole::difference, rows_, columns_);
        break;
    }
    if (layer.kind != LoraKind::difference) use_alpha(layer);
    use_magnitude(layer);
    return layer;
  }

  /// Returns what is added to the bias, by `role`; nothing where the group or the model has none.
  /// What the up half brings is scaled as the weight's addition is.
  std::optional<LoraLayer> bias(LoraRole role, const std::optional<LoraLayer>& weight) const {
    if (!has(role)) return std::nullopt;
    LoraLayer layer;
    layer.kind = LoraKind::difference;
    layer.parts = parts_;
    for (LoraPart& part : layer.parts) {
      if (!part.tensor.ends_with(kWeight)) return std::nullopt;
      part.tensor.replace(part.tensor.size() - kWeight.size(), kWeight.size(), kBias);
      if (products_.size(part.tensor).rows < part.to + part.rows) return std::nullopt;
    }
    use(layer, role, rows_, 1);
    if (role == LoraRole::up_bias) {
      if (!weight || weight->kind != LoraKind::low_rank)
        refuse_lora(at(role), "has no pair of halves beside it");
      layer.rank = weight->rank;
      layer.known_alpha = weight->known_alpha;
      if (const auto alpha = weight->tensor(LoraRole::alpha); !alpha.empty())
        layer.tensors[LoraRole::alpha] = alpha;
    }
    return layer;
  }

  const TensorEntry& first() const { return *group_.begin()->second; }

 private:
  bool has(LoraRole role) const { return group_.contains(role); }
  bool any(LoraRole begin, LoraRole end) const {
    return std::ranges::any_of(
        group_, [&](const auto& item) { return item.first >= begin && item.first <= end; });
  }
  const TensorEntry& at(LoraRole role) const { return *group_.at(role); }

  void check_parts() const {
    for (const LoraPart& part : parts_) {
      const auto size = products_.size(part.tensor);
      if (size.rows == 0 || part.to + part.rows > size.rows || size.columns != columns_)
        refuse_lora(first(),
                    "is for tensor \"" + part.tensor + "\", which this model does not have so");
    }
  }

  const TensorEntry& need(LoraRole role, const char* what) const {
    if (!has(role)) refuse_lora(first(), fmt::format("has no {} beside it", what));
    const TensorEntry& entry = at(role);
    require_floating(entry);
    if (entry.shape.size() < 2 || entry.shape.size() > 5)
      refuse_lora(entry,
                  "has shape " + shape_text(entry.shape) + ": two to five dimensions are needed");
    return entry;
  }

  /// Takes a tensor that has to be of a size; 0: any.
  const TensorEntry& use(LoraLayer& layer, LoraRole role, std::int64_t rows,
                         std::int64_t columns) const {
    const TensorEntry& entry = at(role);
    require_floating(entry);
    const bool fits = !entry.shape.empty() && (rows == 0 || entry.shape[0] == rows) &&
                      (columns == 0 || count(entry, 1) == columns);
    if (!fits)
      refuse_lora(
          entry,
          fmt::format("has shape {}, [{}, {}] is needed for tensor \"{}\"", shape_text(entry.shape),
                      rows == 0 ? "any" : fmt::format("{}", rows),
                      columns == 0 ? "any" : fmt::format("{}", columns), parts_.front().tensor));
    layer.tensors[role] = entry.name;
    return entry;
  }

  void use_alpha(LoraLayer& layer) const {
    if (!has(LoraRole::alpha)) return;
    const TensorEntry& alpha = at(LoraRole::alpha);
    require_floating(alpha);
    if (count(alpha, 0) != 1)
      refuse_lora(alpha, "has shape " + shape_text(alpha.shape) + ", one number is needed");
    layer.tensors[LoraRole::alpha] = alpha.name;
  }

  /// Lengths of rows; LyCORIS's of columns lie along the second dimension.
  void use_magnitude(LoraLayer& layer) const {
    if (!has(LoraRole::magnitude)) return;
    const TensorEntry& entry = at(LoraRole::magnitude);
    require_floating(entry);
    const auto inputs = entry.shape.size() > 1 ? entry.shape[1] : 0;
    const bool of_inputs = inputs > 0 && entry.name.ends_with(".dora_scale") &&
                           entry.shape[0] == 1 && rows_ > 1 && count(entry, 0) == inputs;
    if (!of_inputs && count(entry, 0) != rows_)
      refuse_lora(entry, fmt::format("has shape {}, tensor \"{}\" wants {} lengths",
                                     shape_text(entry.shape), parts_.front().tensor, rows_));
    if (of_inputs && (parts_.size() > 1 || columns_ % inputs != 0))
      refuse_lora(entry, fmt::format("has shape {}: lengths of inputs are taken for one of this "
                                     "model's products alone, of as many inputs",
                                     shape_text(entry.shape)));
    layer.tensors[of_inputs ? LoraRole::input_magnitude : LoraRole::magnitude] = entry.name;
  }

  void read_low_rank(LoraLayer& layer) const {
    const TensorEntry& down = need(LoraRole::down, "down half (lora_A)");
    const TensorEntry& up = need(LoraRole::up, "up half (lora_B)");
    layer.rank = down.shape[0];
    const TensorEntry* mid = has(LoraRole::mid) ? &need(LoraRole::mid, "") : nullptr;
    const std::int64_t places = mid ? count(*mid, 2) : 1;
    const std::string& tensor = parts_.front().tensor;
    const std::int64_t inputs = count(down, 1);
    if (tensor == "x_embedder.weight" && inputs > columns_ && places == 1)
      refuse_lora(down, fmt::format("takes {} inputs, this model's pictures have {}: it is a LoRA "
                                    "of a control model, with a picture to follow beside the "
                                    "latents, which is not served",
                                    inputs, columns_));
    if (columns_ % places != 0 || inputs != columns_ / places)
      refuse_lora(down, fmt::format("has shape {}, tensor \"{}\" takes {} inputs",
                                    shape_text(down.shape), tensor, columns_ / places));
    if (up.shape[0] != rows_)
      refuse_lora(up, fmt::format("has shape {}, tensor \"{}\" wants {} rows", shape_text(up.shape),
                                  tensor, rows_));
    if (mid) use(layer, LoraRole::mid, 0, 0);
    if (mid && mid->shape[1] != layer.rank)
      refuse_lora(*mid, fmt::format("has shape {}, but tensor \"{}\" is of rank {}",
                                    shape_text(mid->shape), down.name, layer.rank));
    const TensorEntry& before = mid ? *mid : down;
    if (count(up, 1) != before.shape[0])
      refuse_lora(up, fmt::format("has shape {}, but tensor \"{}\" is of rank {}",
                                  shape_text(up.shape), before.name, before.shape[0]));
    layer.tensors[LoraRole::down] = down.name;
    layer.tensors[LoraRole::up] = up.name;
  }

  void read_hadamard(LoraLayer& layer) const {
    struct Half {
      LoraRole a, b, t;
      const char *a_name, *b_name, *t_name;
    };
    const bool kernels = has(LoraRole::hada_t1) || has(LoraRole::hada_t2);
    for (const Half& half : {Half{LoraRole::hada_w1_a, LoraRole::hada_w1_b, LoraRole::hada_t1,
                                  "hada_w1_a", "hada_w1_b", "hada_t1"},
                             Half{LoraRole::hada_w2_a, LoraRole::hada_w2_b, LoraRole::hada_t2,
                                  "hada_w2_a", "hada_w2_b", "hada_t2"}}) {
      need(half.a, half.a_name);
      const TensorEntry& b = need(half.b, half.b_name);
      if (layer.rank == 0) layer.rank = b.shape[0];
      if (!kernels) {
        use(layer, half.a, rows_, b.shape[0]);
        use(layer, half.b, 0, columns_);
      } else {
        use_kernel(layer, half.a, half.b, half.t, half.t_name, rows_, columns_);
      }
    }
  }

  /// Takes a kernel [i, j, places] between a [i, rows] and b [j, inputs].
  void use_kernel(LoraLayer& layer, LoraRole a, LoraRole b, LoraRole t, const char* name,
                  std::int64_t rows, std::int64_t columns) const {
    const TensorEntry& kernel = need(t, name);
    const std::int64_t places = count(kernel, 2);
    if (columns % places != 0)
      refuse_lora(kernel, fmt::format("has shape {}, which does not divide the {} inputs of tensor "
                                      "\"{}\"",
                                      shape_text(kernel.shape), columns, parts_.front().tensor));
    use(layer, t, 0, 0);
    use(layer, a, kernel.shape[0], rows);
    use(layer, b, kernel.shape[1], columns / places);
  }

  void read_kronecker(LoraLayer& layer) const {
    const bool whole_1 = has(LoraRole::lokr_w1), whole_2 = has(LoraRole::lokr_w2);
    std::int64_t rows = 0, columns = 0;  // of the first factor
    if (whole_1) {
      const TensorEntry& w1 = need(LoraRole::lokr_w1, "lokr_w1");
      rows = w1.shape[0];
      columns = count(w1, 1);
      use(layer, LoraRole::lokr_w1, 0, 0);
    } else {
      rows = need(LoraRole::lokr_w1_a, "lokr_w1 or lokr_w1_a").shape[0];
      const TensorEntry& b = need(LoraRole::lokr_w1_b, "lokr_w1_b");
      columns = count(b, 1);
      layer.rank = b.shape[0];
      use(layer, LoraRole::lokr_w1_a, 0, b.shape[0]);
      use(layer, LoraRole::lokr_w1_b, 0, 0);
    }
    if (rows_ % rows != 0 || columns_ % columns != 0)
      refuse_lora(first(), fmt::format("has a first factor [{}, {}], which does not divide tensor "
                                       "\"{}\" of [{}, {}]",
                                       rows, columns, parts_.front().tensor, rows_, columns_));
    rows = rows_ / rows;
    columns = columns_ / columns;
    if (whole_2) {
      need(LoraRole::lokr_w2, "lokr_w2");
      use(layer, LoraRole::lokr_w2, rows, columns);
      return;
    }
    need(LoraRole::lokr_w2_a, "lokr_w2 or lokr_w2_a");
    const TensorEntry& b = need(LoraRole::lokr_w2_b, "lokr_w2_b");
    layer.rank = b.shape[0];
    if (has(LoraRole::lokr_t2)) {
      use_kernel(layer, LoraRole::lokr_w2_a, LoraRole::lokr_w2_b, LoraRole::lokr_t2, "lokr_t2",
                 rows, columns);
    } else {
      use(layer, LoraRole::lokr_w2_a, rows, b.shape[0]);
      use(layer, LoraRole::lokr_w2_b, 0, columns);
    }
  }

  const LoraGroup& group_;
  const LoraProducts& products_;
  const std::vector<LoraPart>& parts_;
  std::int64_t rows_ = 0;  // of the product
  std::int64_t columns_ = 0;
};

/// Finds the layers of groups, and what is left of them.
class LayerFinder {
 public:
  LayerFinder(const ModelSpec& model, const LoraMetadata& metadata, Unused& unused)
      : targets_(model), metadata_(metadata), unused_(unused) {}

  /// Adds the layers of the groups; first of those that have diffusers' names. A product that comes
  /// under two names is added once.
  void read(const std::map<std::string, LoraGroup>& groups) {
    std::vector<std::pair<const LoraGroup*, LoraOwner>> aliases;
    for (const auto& [base, group] : groups) {
      LoraOwner owner = targets_.owner_of(base);
      const auto* parts = owner.why.empty() ? find(owner) : nullptr;
      if (parts == nullptr) {
        unused_.add(group, owner.why.empty() ? "matches no layer of this model" : owner.why);
      } else if (parts->size() == 1 && is_own_name(parts->front().tensor, owner)) {
        if (named_.emplace(owner.component, parts->front().tensor).second)
          read(group, owner, *parts);
        else
          unused_.add(group, "is for a product that the file has under another name, too");
      } else {
        aliases.emplace_back(&group, std::move(owner));
      }
    }
    for (const auto& [group, owner] : aliases) {
      const auto& parts = *find(owner);
      if (std::ranges::any_of(parts, [&, &component = owner.component](const LoraPart& part) {
            return named_.contains({component, part.tensor});
          })) {
        unused_.add(*group, "is for products that the file has under other names, too");
        continue;
      }
      read(*group, owner, parts);
      for (const LoraPart& part : parts)
        named_.emplace(owner.component, part.tensor);
    }
  }

  std::vector<LoraLayer> take() { return std::move(layers_); }

 private:
  const std::vector<LoraPart>* find(const LoraOwner& owner) const {
    return targets_.products(owner.component).find(owner.name, owner.flat);
  }

  static bool is_own_name(const std::string& tensor, const LoraOwner& owner) {
    const std::string own = without_root(tensor.substr(0, tensor.size() - kWeight.size()));
    return flat(own) == flat(without_root(owner.name));
  }

  void read(const LoraGroup& group, const LoraOwner& owner, const std::vector<LoraPart>& parts) {
    const GroupReader reader(group, targets_.products(owner.component), parts);
    auto weight = reader.weight();
    std::set<std::string> used;
    const auto add = [&](LoraLayer layer) {
      for (const auto& [role, name] : layer.tensors)
        used.insert(name);
      layer.component = owner.component;
      layers_.push_back(std::move(layer));
    };
    if (weight) {
      weight->component = owner.component;
      metadata_.set_alpha(*weight, owner.name, reader.first());
      add(*weight);
    }
    for (const LoraRole role : {LoraRole::bias_difference, LoraRole::up_bias}) {
      if (auto bias = reader.bias(role, weight)) add(std::move(*bias));
    }
    for (const auto& [role, entry] : group) {
      if (used.contains(entry->name)) continue;
      const bool of_bias = role == LoraRole::bias_difference || role == LoraRole::up_bias;
      unused_.add(*entry, of_bias ? "is for a bias that this model does not have"
                                  : "has nothing beside it that it belongs to");
    }
  }

  LoraTargets targets_;
  const LoraMetadata& metadata_;
  Unused& unused_;
  std::vector<LoraLayer> layers_;
  std::set<std::pair<std::string, std::string>> named_;
};

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

std::string LoraLayer::tensor(LoraRole role) const {
  const auto found = tensors.find(role);
  return found == tensors.end() ? "" : found->second;
}

LoraSpec read_lora_spec(const std::filesystem::path& file, const ModelSpec& model, bool of_second) {
  if (of_second && !model.second_transformer)
    refuse_lora(file, "is to be added to a second transformer, and this model has one alone");
  LoraSpec spec;
  spec.weights = WeightIndex::read_file(file);
  if (spec.weights.tensors().empty()) refuse_lora(file, "has no tensors");
  const LoraMetadata metadata(spec.weights);
  Unused unused;
  const auto groups = lora_groups(spec.weights, unused);
  LayerFinder finder(model, metadata, unused);
  finder.read(groups);
  spec.layers = finder.take();
  if (spec.layers.empty()) unused.refuse_all();
  spec.unused = unused.text(spec.weights);
  for (LoraLayer& layer : spec.layers)
    if (of_second && layer.component == kDenoiser) layer.component = kSecondTransformer;
  return spec;
}

}  // namespace troupe::spec
