#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/transformer_facts.h"

namespace troupe::spec {

class FitCheck;
struct Pipeline;

/// `transformer/config.json` of a QwenImageTransformer2DModel that makes pictures from text, or
/// edits some. Defaults are diffusers'.
struct QwenImageSpec {
  static constexpr std::string_view kClasses[] = {"QwenImageTransformer2DModel"};
  /// Refuses what is not supported by key and value: the settings of models that layer pictures
  /// among it.
  static QwenImageSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  /// Channels of a token: those of patch_size × patch_size latent pixels.
  std::int64_t in_channels = 64;
  std::int64_t patch_size = 2;
  std::int64_t num_layers = 60;
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 24;
  /// Width of the text encoder's states.
  std::int64_t joint_attention_dim = 3584;
  /// Numbers of a head's channels that turn by a token's frame, row and column.
  std::vector<std::int64_t> axes_dims_rope = {16, 56, 56};
  /// True if pictures to edit are modulated as at the end of denoising.
  bool zero_cond_t = false;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  std::int64_t latent_channels() const { return in_channels / (patch_size * patch_size); }

  bool operator==(const QwenImageSpec&) const = default;
};

std::vector<PlannedTensor> planned_tensors(const QwenImageSpec& spec);
TransformerFacts facts_of(const QwenImageSpec& spec);
void check_fit(const QwenImageSpec& spec, const FitCheck& fit);

}  // namespace troupe::spec
