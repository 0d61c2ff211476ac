#include "models/spec/lora_pairs.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "models/spec/lora_refusal.h"

namespace troupe::spec {
namespace {

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

}  // namespace

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

}  // namespace troupe::spec
