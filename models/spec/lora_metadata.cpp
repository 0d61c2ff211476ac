#include "models/spec/lora_metadata.h"

#include <cmath>

#include "models/spec/json_text.h"
#include "models/spec/lora_refusal.h"

namespace troupe::spec {

LoraMetadata::LoraMetadata(const WeightIndex& weights) : file_(weights.label()) {
  const auto found = weights.metadata().find("lora_adapter_metadata");
  if (found == weights.metadata().end()) return;
  json_ = parse_json(found->second, file_);
  if (!json_.is_object()) refuse_lora(file_, "metadata lora_adapter_metadata is not a JSON object");
  for (const auto& [key, value] : json_.items()) {
    for (const char* unsupported : {".use_dora", ".use_rslora", ".lora_bias", ".fan_in_fan_out"}) {
      if (key.ends_with(unsupported) && value == true)
        refuse_lora(file_, "metadata " + in_quotes(key) + " = true is not supported");
    }
    if (key.ends_with(".alpha_pattern")) check_patterns(key, value);
  }
}

std::optional<double> LoraMetadata::alpha(const LoraOwner& owner) const {
  if (!json_.is_object()) return std::nullopt;
  for (const std::string& component : {owner.component, std::string("unet")}) {
    if (component == "unet" && owner.component != kDenoiser) continue;
    const std::string key = component + ".lora_alpha";
    if (!json_.contains(key)) continue;
    if (!json_[key].is_number() || !std::isfinite(json_[key].get<double>()))
      refuse_lora(file_, "metadata " + key + " is not a number");
    return by_pattern(component + ".alpha_pattern", owner.name).value_or(json_[key].get<double>());
  }
  return std::nullopt;
}

/// PEFT's patterns are the ends of names; regular expressions are refused.
void LoraMetadata::check_patterns(const std::string& key, const nlohmann::json& patterns) const {
  if (!patterns.is_object()) return;
  for (const auto& [pattern, value] : patterns.items()) {
    if (pattern.find_first_of("*+?()[]{}|^$\\") != std::string::npos || !value.is_number() ||
        !std::isfinite(value.get<double>()))
      refuse_lora(
          file_, "metadata " + key + " has a pattern that is not supported: " + in_quotes(pattern));
  }
}

/// Of several patterns that fit the first by the alphabet, as the file is read.
std::optional<double> LoraMetadata::by_pattern(const std::string& key,
                                               const std::string& name) const {
  const auto patterns = json_.find(key);
  if (patterns == json_.end() || !patterns->is_object()) return std::nullopt;
  auto first = patterns->end();
  for (std::size_t at = 0; at != std::string::npos;) {
    const auto found = patterns->find(name.substr(at));
    if (found != patterns->end() && (first == patterns->end() || found.key() < first.key()))
      first = found;
    at = name.find('.', at);
    if (at != std::string::npos) ++at;
  }
  return first == patterns->end() ? std::nullopt : std::optional(first->get<double>());
}

}  // namespace troupe::spec
