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

/// `transformer/config.json` of a ZImageTransformer2DModel: Z-Image and Z-Image-Turbo. Defaults are
/// diffusers'.
struct ZImageSpec {
  static constexpr std::string_view kClasses[] = {"ZImageTransformer2DModel"};
  /// Tensors of the authors' files that nothing reads.
  static constexpr std::string_view kUnused[] = {"norm_final.weight"};
  /// Refuses what is not supported by key and value.
  static ZImageSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  std::int64_t in_channels = 16;
  std::int64_t dim = 3840;
  std::int64_t n_layers = 30;
  /// Number of blocks that the picture's tokens go through alone, before the others; and of those
  /// that the text's do.
  std::int64_t n_refiner_layers = 2;
  std::int64_t n_heads = 30;
  std::int64_t cap_feat_dim = 2560;
  double norm_eps = 1e-5;
  double rope_theta = 256;
  double t_scale = 1000;
  /// Numbers of a head's channels that belong to each of the three coordinates of its rotary
  /// positions: place in the text, row, column.
  std::vector<std::int64_t> axes_dims = {32, 48, 48};
  std::vector<std::int64_t> axes_lens = {1024, 512, 512};

  std::int64_t head_dim() const { return dim / n_heads; }
  std::int64_t feed_forward() const;
  /// Width of what the timestep becomes.
  std::int64_t condition_width() const;
  std::int64_t blocks() const { return n_refiner_layers + n_layers; }

  bool operator==(const ZImageSpec&) const = default;
};

/// Latent pixels along a side of a token.
inline constexpr std::int64_t kZImagePatch = 2;
/// Width of the layer between the timestep's sines and what it becomes.
inline constexpr std::int64_t kZImageTimeWidth = 1024;

/// "noise_refiner.1." or "layers.3.", for blocks as the whole model counts them.
std::string zimage_block_prefix(const ZImageSpec& spec, std::int64_t block);
/// "context_refiner.1."
std::string zimage_text_prefix(std::int64_t block);

std::vector<PlannedTensor> planned_tensors(const ZImageSpec& spec);
TransformerFacts facts_of(const ZImageSpec& spec);
void check_fit(const ZImageSpec& spec, const FitCheck& fit);

}  // namespace troupe::spec
