#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/transformer_facts.h"

namespace troupe::spec {

class FitCheck;
struct Pipeline;

/// `transformer/config.json` of an SD3Transformer2DModel: SD3 and SD3.5. Defaults are diffusers'.
struct Sd3Spec {
  static constexpr std::string_view kClasses[] = {"SD3Transformer2DModel"};
  /// Refuses what is not supported by key and value.
  static Sd3Spec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  std::int64_t sample_size = 128;
  std::int64_t patch_size = 2;
  std::int64_t in_channels = 16;
  std::int64_t num_layers = 18;
  std::int64_t attention_head_dim = 64;
  std::int64_t num_attention_heads = 18;
  std::int64_t joint_attention_dim = 4096;
  std::int64_t pooled_projection_dim = 2048;
  /// Tokens along a side of the stored position table, of whose middle a picture takes its part.
  std::int64_t pos_embed_max_size = 96;
  /// Blocks that attend over the picture's tokens a second time.
  std::vector<std::int64_t> dual_attention_layers;
  /// RMS norm of queries and keys by head.
  bool qk_norm = false;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  bool is_dual(std::int64_t block) const;
  /// Returns whether the block is the last, which gives its text tokens to the attention only.
  bool is_last(std::int64_t block) const { return block + 1 == num_layers; }

  bool operator==(const Sd3Spec&) const = default;
};

/// Tokens of the CLIP encoders, before T5's. Source: StableDiffusion3Pipeline of diffusers.
inline constexpr std::int64_t kClipTokens = 77;

std::vector<PlannedTensor> planned_tensors(const Sd3Spec& spec);
TransformerFacts facts_of(const Sd3Spec& spec);
void check_fit(const Sd3Spec& spec, const FitCheck& fit);

/// Names of a joint block's parts in which families differ.
struct JointBlockNames {
  const char* norm = "norm1.linear";
  const char* text_norm = "norm1_context.linear";
  const char* forward = "ff";
  const char* text_forward = "ff_context";
  const char* widen = "net.0.proj";
  const char* narrow = "net.2";
};
inline constexpr JointBlockNames kQwenImageNames{"img_mod.1", "txt_mod.1", "img_mlp", "txt_mlp"};

/// Adds the tensors of a joint block of text and picture tokens, in the names that SD3 and FLUX
/// share unless `names` says others. `modulations`: of the picture's tokens.
struct JointBlockShape {
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t modulations = 6;
  bool qk_norm = false;
  bool dual = false;
  bool last = false;
  /// True if both streams are kept within the range of float16, as diffusers does for some models.
  bool clips_half = false;
  /// False if what modulates the block is made elsewhere.
  bool modulates = true;
  /// True if products have biases.
  bool bias = true;
  /// Width of feed-forwards in which one half gates the other; 0: they are four times as wide as
  /// the block, without gates.
  std::int64_t gated_forward = 0;
  /// True if the half that gates is stored behind the other.
  bool gate_last = false;
  JointBlockNames names = {};
};
void add_joint_block(TensorTable& table, const std::string& prefix, const JointBlockShape& shape);

}  // namespace troupe::spec
