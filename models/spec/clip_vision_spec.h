#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/weight_index.h"

namespace troupe::spec {

/// `config.json` of a CLIPVisionModel. Defaults are transformers' own.
struct ClipVisionSpec {
  std::int64_t hidden_size = 768;
  std::int64_t intermediate_size = 3072;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  /// Side of the square that it sees, in pixels, and of its tokens.
  std::int64_t image_size = 224;
  std::int64_t patch_size = 32;
  double layer_norm_eps = 1e-5;
  /// x · sigmoid(1.702 x) where true, GELU by the error function where false.
  bool quick_gelu = true;

  /// Tokens of a picture: one for the whole, then one for each square.
  std::int64_t tokens() const {
    const std::int64_t side = image_size / patch_size;
    return side * side + 1;
  }
  bool operator==(const ClipVisionSpec&) const = default;
};

/// Refuses what is not supported by key and value.
ClipVisionSpec read_clip_vision_spec(const ConfigReader& config);

/// Every tensor that the states before the last layer need, in the names that transformers 5 gives
/// them; before, they began with "vision_model.".
std::vector<ExpectedTensor> expected_tensors(const ClipVisionSpec& spec);

/// Returns whether a tensor is ignored: of the last layer and what follows it, positions' numbers,
/// and the text's half.
bool is_ignorable_clip_vision_tensor(const ClipVisionSpec& spec, std::string_view name);

/// `preprocessor_config.json` of a CLIPImageProcessor: a picture's way to what the tower sees.
struct ClipPictureSpec {
  /// The shorter side after a bicubic resize; 0: both sides are `height` and `width`.
  std::int64_t shortest_edge = 224;
  std::int64_t height = 0, width = 0;
  /// Pixels that are cut out of the middle.
  std::int64_t crop_height = 224, crop_width = 224;
  std::array<double, 3> mean = {0.48145466, 0.4578275, 0.40821073};
  std::array<double, 3> deviation = {0.26862954, 0.26130258, 0.27577711};

  bool operator==(const ClipPictureSpec&) const = default;
};

/// Refuses what is not supported by key and value.
ClipPictureSpec read_clip_picture_spec(const ConfigReader& config);

/// A vision tower with what prepares its pictures.
struct VisionEncoderSpec {
  ClipVisionSpec config;
  ClipPictureSpec pictures;
  WeightIndex weights;

  bool operator==(const VisionEncoderSpec&) const = default;
};

/// Bytes of the tower in a type of `element` bytes, and of its largest block or its embeddings.
std::uint64_t vision_bytes(const VisionEncoderSpec& vision, std::size_t element);
std::uint64_t vision_peak_bytes(const VisionEncoderSpec& vision, std::size_t element);

}  // namespace troupe::spec
