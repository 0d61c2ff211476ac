#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"

namespace troupe::spec {

struct PixelSize;

/// The vision tower of a Qwen2.5-VL, with what its image processor does to a picture:
/// `vision_config` of the text encoder's config.json, and the processor's own config. Defaults are
/// those of Qwen2_5_VLVisionConfig and Qwen2VLImageProcessor.
struct QwenVisionSpec {
  std::int64_t depth = 32;
  std::int64_t hidden_size = 3584;
  std::int64_t intermediate_size = 3420;
  std::int64_t num_heads = 16;
  /// Pixels of a patch's side.
  std::int64_t patch_size = 14;
  /// Frames of a patch: a picture is repeated so many times.
  std::int64_t temporal_patch_size = 2;
  /// Patches of the side of a square that becomes one token.
  std::int64_t spatial_merge_size = 2;
  /// Pixels of the side of the window within which a patch attends.
  std::int64_t window_size = 112;
  /// Blocks in which it attends to the whole picture.
  std::vector<std::int64_t> fullatt_block_indexes = {7, 15, 23, 31};
  std::int64_t out_hidden_size = 3584;
  double rope_theta = 10000;

  std::int64_t min_pixels = 56 * 56;
  std::int64_t max_pixels = 28 * 28 * 1280;
  std::vector<double> image_mean = {0.48145466, 0.4578275, 0.40821073};
  std::vector<double> image_std = {0.26862954, 0.26130258, 0.27577711};

  /// The token that stands for each of a picture's in a text.
  std::int64_t image_token_id = 151655;
  /// Pairs of a head's channels in the language model that turn by a token's time, row and column.
  std::vector<std::int64_t> mrope_section = {16, 24, 24};

  /// Pixels of a token's side.
  std::int64_t token_side() const { return patch_size * spatial_merge_size; }
  /// Values of a patch.
  std::int64_t patch_values() const { return 3 * temporal_patch_size * patch_size * patch_size; }
  bool operator==(const QwenVisionSpec&) const = default;
};

/// Reads the vision tower's half of a Qwen2.5-VL's config. `processor`: the folder of its
/// processor. `head_dim`, `hidden_size`: sizes of the language model. Refuses what is not supported
/// by key and value.
QwenVisionSpec read_qwen_vision_spec(const ConfigReader& config,
                                     const std::filesystem::path& processor, std::int64_t head_dim,
                                     std::int64_t hidden_size);

/// Every tensor of the tower, in transformers' names.
std::vector<ExpectedTensor> expected_tensors(const QwenVisionSpec& spec);

/// "visual.blocks.7."
std::string qwen_vision_block_prefix(std::int64_t block);

/// Returns the size that the image processor brings a picture to, whole tokens a side. Source:
/// smart_resize of transformers.
PixelSize seen_size(const QwenVisionSpec& spec, PixelSize picture);

}  // namespace troupe::spec
