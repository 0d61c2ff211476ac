#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/sd3_spec.h"
#include "models/spec/transformer_facts.h"

namespace troupe::spec {

class FitCheck;
struct Pipeline;

/// Sizes of Chroma's approximator, which makes all values that modulate the blocks from the
/// timestep alone. Defaults are diffusers'.
struct ApproximatorSpec {
  std::int64_t num_channels = 64;  ///< sines of a vector's timestep and number
  std::int64_t hidden_dim = 5120;
  std::int64_t layers = 5;

  bool operator==(const ApproximatorSpec&) const = default;
};

/// Models of FLUX.1's blocks that are modulated by layers of their own.
enum class FluxKind {
  flux,     ///< timestep, guidance and a vector of the text modulate them; text has no positions
  ovis,     ///< Ovis-Image: timestep alone; text is normed and has positions; gated feed-forwards
  longcat,  ///< LongCat-Image: timestep alone; text has positions, the picture's behind them
};

/// `transformer/config.json` of a FluxTransformer2DModel: FLUX.1 dev and schnell. Defaults are
/// diffusers'.
struct FluxSpec {
  static constexpr std::string_view kClasses[] = {"FluxTransformer2DModel"};
  /// Refuses what is not supported by key and value.
  static FluxSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  /// Channels of a token as it goes in: four latent pixels of a fourth as many channels, with those
  /// that stand beside the latents.
  std::int64_t in_channels = 64;
  std::int64_t out_channels = 64;       ///< channels of a token's latents alone
  std::int64_t num_layers = 19;         ///< blocks of two streams
  std::int64_t num_single_layers = 38;  ///< blocks of one stream, after them
  std::int64_t attention_head_dim = 128;
  std::int64_t num_attention_heads = 24;
  std::int64_t joint_attention_dim = 4096;
  std::int64_t pooled_projection_dim = 768;
  bool guidance_embeds = false;
  /// Numbers of a head's channels that belong to each of the three coordinates of its rotary
  /// positions.
  std::vector<std::int64_t> axes_dims_rope = {16, 56, 56};
  /// Network that modulates the blocks; null: they have layers of their own for that.
  std::optional<ApproximatorSpec> approximator = {};
  FluxKind kind = FluxKind::flux;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  std::int64_t latent_channels() const { return out_channels / 4; }
  std::int64_t blocks() const { return num_layers + num_single_layers; }
  /// Returns the number of vectors, of inner_dim() numbers each, that modulate all blocks and the
  /// last norm.
  std::int64_t modulations() const { return 3 * num_single_layers + 12 * num_layers + 2; }
  /// Returns whether one half of a feed-forward gates the other.
  bool gates() const { return kind == FluxKind::ovis; }
  /// Returns whether the text's states are normed before they are embedded.
  bool norms_text() const { return kind == FluxKind::ovis; }
  /// Returns whether text tokens are turned by their place in the text.
  bool turns_text() const { return kind != FluxKind::flux; }
  /// Name of the layers that embed the timestep, where it alone modulates the blocks; else "".
  std::string timestep_embedder() const;
  /// Columns of a feed-forward, or of each of its halves where one gates the other.
  std::int64_t feed_forward() const { return 4 * inner_dim(); }
  JointBlockShape joint_block() const;

  bool operator==(const FluxSpec&) const = default;
};

/// `transformer/config.json` of a ChromaTransformer2DModel: FLUX with an approximator, true
/// guidance and no vector of the text.
struct ChromaSpec : FluxSpec {
  static constexpr std::string_view kClasses[] = {"ChromaTransformer2DModel"};
  /// Refuses what is not supported by key and value.
  static ChromaSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  bool operator==(const ChromaSpec&) const = default;
};

/// `transformer/config.json` of an OvisImageTransformer2DModel. Defaults are diffusers'.
struct OvisImageSpec : FluxSpec {
  static constexpr std::string_view kClasses[] = {"OvisImageTransformer2DModel"};
  /// Refuses what is not supported by key and value.
  static OvisImageSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  bool operator==(const OvisImageSpec&) const = default;
};

/// `transformer/config.json` of a LongCatImageTransformer2DModel. Defaults are diffusers'.
struct LongCatImageSpec : FluxSpec {
  static constexpr std::string_view kClasses[] = {"LongCatImageTransformer2DModel"};
  /// Refuses what is not supported by key and value.
  static LongCatImageSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  bool operator==(const LongCatImageSpec&) const = default;
};

/// Rows and columns before those of LongCat-Image's picture. Source: LongCatImagePipeline's
/// tokenizer_max_length.
inline constexpr std::int64_t kLongCatTextTokens = 512;

std::vector<PlannedTensor> planned_tensors(const FluxSpec& spec);
TransformerFacts facts_of(const FluxSpec& spec);
void check_fit(const FluxSpec& spec, const FitCheck& fit);
void check_fit(const ChromaSpec& spec, const FitCheck& fit);
void check_fit(const OvisImageSpec& spec, const FitCheck& fit);
void check_fit(const LongCatImageSpec& spec, const FitCheck& fit);

}  // namespace troupe::spec
