#include "models/spec/lora_metadata.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/format.h"
#include "base/number_text.h"
#include "models/spec/json_text.h"
#include "models/spec/lora_refusal.h"

namespace troupe::spec {
namespace {

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

}  // namespace

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

}  // namespace troupe::spec
