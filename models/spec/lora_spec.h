#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
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

/// Names of components: the transformer or U-Net, and the second of two transformers.
inline constexpr const char* kDenoiser = "transformer";
inline constexpr const char* kSecondTransformer = "transformer_2";

/// Name of the file of settings that PEFT writes beside its weights.
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// Part that a tensor of a file plays in what is added to a product.
enum class LoraRole : std::uint8_t {
  down,  ///< [rank, in], or a kernel of so many outputs
  up,    ///< [out, rank]
  mid,   ///< [rank, rank, …]: the kernel between the two, which have no places of their own then
  hada_w1_a,
  hada_w1_b,
  hada_w2_a,
  hada_w2_b,
  hada_t1,
  hada_t2,
  lokr_w1,
  lokr_w1_a,
  lokr_w1_b,
  lokr_w2,
  lokr_w2_a,
  lokr_w2_b,
  lokr_t2,
  difference,       ///< values that are added as they are
  bias_difference,  ///< the same for the bias
  up_bias,          ///< addition of the up half to the bias
  alpha,            ///< a scalar
  magnitude,        ///< DoRA's lengths of the sum's rows
  input_magnitude,  ///< DoRA's lengths of the sum's columns
};

/// Way in which what is added is made of a file's tensors.
enum class LoraKind : std::uint8_t {
  low_rank,    ///< product up · down, or with a kernel between them
  hadamard,    ///< LoHa: (w1_a · w1_b) ∘ (w2_a · w2_b)
  kronecker,   ///< LoKr: w1 ⊗ w2, each whole or a product
  difference,  ///< one tensor
};

/// Addition of a file to one product of the model, a matrix [out, in], or to its bias, [out, 1].
struct LoraLayer {
  std::string component;  ///< "transformer", "text_encoder", "text_encoder_2", …
  LoraKind kind = LoraKind::low_rank;
  std::map<LoraRole, std::string> tensors;  ///< names in the file
  std::optional<double> known_alpha;        ///< alpha by the file's settings, before the tensor's
  std::int64_t rank = 0;                    ///< divisor of alpha; 0: nothing is scaled
  /// Rows of the product and of the weights that they are added to. Weights are seen as matrices:
  /// a kernel's inputs and places side by side.
  std::vector<LoraPart> parts;

  /// Returns the name of the tensor that plays the part; "" where there is none.
  std::string tensor(LoraRole role) const;
  bool operator==(const LoraLayer&) const = default;
};

struct LoraSpec {
  WeightIndex weights;
  std::vector<LoraLayer> layers;
  /// One line on the file's tensors that are not used: how many, and why the first is not; "" where
  /// all are.
  std::string unused;

  bool operator==(const LoraSpec&) const = default;
};

/// Reads the header of a LoRA's file and finds the layer of each of its tensors, in diffusers' and
/// PEFT's naming (`transformer.….lora_A.weight`, `unet.`, `text_encoder.`, also
/// `….lora.up.weight`), in kohya's (`lora_unet_….lora_up.weight`, `lora_te1_…`), LyCORIS's
/// (`lycoris_….lokr_w1`) or ComfyUI's (`diffusion_model.`, `text_encoders.clip_l.transformer.`),
/// each also by the names that the model's authors use. Alphas are what diffusers' metadata in the
/// file say, or PEFT's adapter_config.json beside a file of PEFT's; else those of the file; without
/// one the product is added as it is. Throws std::runtime_error naming file and tensor for half of
/// a pair, other shapes, and a file of which nothing belongs to this model.
/// `of_second`: what is for the transformer is for the second of two, as diffusers'
/// `load_into_transformer_2` says; throws where there is none.
LoraSpec read_lora_spec(const std::filesystem::path& file, const ModelSpec& model,
                        bool of_second = false);

}  // namespace troupe::spec
