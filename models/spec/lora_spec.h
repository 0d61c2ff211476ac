#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/spec/model_spec.h"
#include "models/spec/original_names.h"
#include "models/spec/weight_index.h"

namespace troupe::spec {

/// Returns `text` in quotes on one line, whatever characters it contains.
std::string in_quotes(const std::string& text);

/// A LoRA's file that does not fit, or its tensor: std::runtime_error of one line.
[[noreturn]] void refuse_lora(const std::filesystem::path& file, const std::string& why);
[[noreturn]] void refuse_lora(const TensorEntry& entry, const std::string& why);

/// Name of the file of settings that PEFT writes beside its weights.
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// A pair of a file: up [out, rank] · down [rank, in], and what it is added to.
struct LoraLayer {
  std::string component;  ///< "transformer", "text_encoder", "text_encoder_2", …
  std::string down;       ///< tensors of the file
  std::string up;
  std::string alpha;                  ///< a scalar; "" where the file has none for this pair
  std::optional<double> known_alpha;  ///< alpha that the file's settings name; used in place of the
                                      ///< tensor `alpha`
  std::int64_t rank = 0;
  /// Rows of the product and of the weights that they are added to. Weights are seen as matrices:
  /// a kernel's inputs and places side by side.
  std::vector<LoraPart> parts;

  bool operator==(const LoraLayer&) const = default;
};

struct LoraSpec {
  WeightIndex weights;
  std::vector<LoraLayer> layers;

  bool operator==(const LoraSpec&) const = default;
};

/// Reads the header of a LoRA's safetensors file and finds the layer of each of its tensors, in
/// diffusers' and PEFT's naming (`transformer.….lora_A.weight`, `unet.`, `text_encoder.`, also
/// `….lora.up.weight`), or in kohya's (`lora_unet_….lora_up.weight`, `lora_te1_…`), there also by
/// the names of FLUX's and SD3's authors. Alphas are what diffusers' metadata in the file say, or
/// PEFT's adapter_config.json beside a file of PEFT's; else those of the file; without one the
/// product is added as it is. Throws
/// std::runtime_error naming file and tensor for whatever has no layer in this model, is no half of
/// a pair, is of another kind (DoRA, LoHa, LoKr, differences, biases), or has other shapes.
LoraSpec read_lora_spec(const std::filesystem::path& file, const ModelSpec& model);

}  // namespace troupe::spec
