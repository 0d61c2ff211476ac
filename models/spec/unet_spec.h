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

/// One resolution of a U-Net; each is half as high and wide as the one before, rounded up.
struct UNetLevel {
  std::int64_t channels = 0;
  /// Residual blocks on the way down; one more on the way up.
  std::int64_t layers = 2;
  std::int64_t heads = 8;
  /// Transformer blocks after each residual block; 0 without attention.
  std::int64_t down_transformers = 0;
  std::int64_t up_transformers = 0;

  bool operator==(const UNetLevel&) const = default;
};

/// `unet/config.json` of a UNet2DConditionModel as Stable Diffusion 1, 2 and XL have it.
struct UNetSpec {
  static constexpr std::string_view kClasses[] = {"UNet2DConditionModel"};
  /// Refuses what is not supported by key and value.
  static UNetSpec read(const ConfigReader& config);
  /// Reads what a ControlNet has of a U-Net; its own keys are left to the caller.
  static UNetSpec read_way_down(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  /// Height and width of the original, of what was cropped and of the target.
  static constexpr std::int64_t kTimeIds = 6;

  std::int64_t in_channels = 4;
  std::int64_t out_channels = 4;
  /// Height and width of the latents of a request that names no size.
  std::int64_t sample_size = 64;
  std::vector<UNetLevel> levels;
  std::int64_t mid_transformers = 1;
  std::int64_t mid_heads = 8;
  std::int64_t cross_attention_dim = 1280;
  std::int64_t norm_num_groups = 32;
  double norm_eps = 1e-5;
  bool flip_sin_to_cos = true;
  std::int64_t freq_shift = 0;
  /// Products by linear layers, or by convolutions of side 1: other shapes of the same weights.
  bool use_linear_projection = false;
  /// True for a ControlNet: there are the layers down to the middle, and no others. The middle may
  /// lack its transformers, and is one residual block then.
  bool way_down_alone = false;
  /// SDXL's: pooled text and sizes are added to the time. 0 without.
  std::int64_t addition_time_embed_dim = 0;
  std::int64_t projection_class_embeddings_input_dim = 0;

  std::int64_t time_embed_dim() const { return 4 * levels.front().channels; }
  /// Width of the pooled text; 0 without.
  std::int64_t pooled_width() const {
    return projection_class_embeddings_input_dim - kTimeIds * addition_time_embed_dim;
  }
  /// Channels of the feature map that the last two layers begin with.
  std::int64_t inner_channels() const {
    return levels[levels.front().layers > 1 || levels.size() == 1 ? 0 : 1].channels;
  }
  /// Numbers of sizes and crops that are added: six in SDXL.
  std::int64_t time_ids(std::int64_t pooled) const {
    return (projection_class_embeddings_input_dim - pooled) / addition_time_embed_dim;
  }

  bool operator==(const UNetSpec&) const = default;
};

/// A layer that looks beyond its own rows, and so sends values to other patches in each step.
struct UNetSite {
  enum class Kind { conv, norm, attention };
  Kind kind = Kind::conv;
  int level = 0;           ///< level of the rows that are sent
  std::int64_t width = 0;  ///< channels; of a norm, groups

  bool operator==(const UNetSite&) const = default;
};

/// Returns the sites in the order in which the model computes them, for each kind.
std::vector<UNetSite> sites_of(const UNetSpec& spec);
/// Channels of each attention to the text.
std::vector<std::int64_t> text_attentions(const UNetSpec& spec);

/// Work of a U-Net at one level, for each of the level's positions.
struct UNetWork {
  std::int64_t channels = 0;
  /// Number of weights that a position meets in convolutions and products.
  double weights = 0;
  /// Number of transformer blocks: each attends to its level's positions and to the text.
  int attentions = 0;
  /// Number of values that norms, activations and sums read or write.
  double elementwise = 0;
};

/// Returns the work at each level.
std::vector<UNetWork> work_of(const UNetSpec& spec);

/// Every tensor, in diffusers' names.
std::vector<ExpectedTensor> expected_tensors(const UNetSpec& spec);

/// Facts of the U-Net for plans, as a transformer of one block and one head that is never split;
/// FLOPs are those of a position of the latents, deeper levels counted by their share of positions.
TransformerFacts facts_of(const UNetSpec& spec);
void check_fit(const UNetSpec& spec, const FitCheck& fit);
std::vector<PlannedTensor> planned_tensors(const UNetSpec& spec);

}  // namespace troupe::spec
