#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "models/encoders/encoder_weights.h"
#include "models/encoders/qwen_vision_tower.h"
#include "models/safetensors.h"
#include "models/spec/qwen_text_spec.h"

namespace troupe::models {

/// A Qwen language model up to its states, without the head that predicts words: grouped queries,
/// each token attends to itself and those before it. Where it has a vision tower, pictures may
/// stand in its texts. Reads its weights a block at a time, as T5Encoder does. Source: Qwen3Model
/// and Qwen2_5_VLModel of transformers.
class QwenTextModel {
 public:
  /// Throws std::runtime_error if a tensor is missing or misshapen.
  QwenTextModel(const spec::QwenTextSpec& spec, WeightStore weights,
                at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);

  /// Same as T5Encoder::let_stay.
  void let_stay() { weights_.stay(); }
  std::uint64_t bytes() const { return weights_.bytes(); }

  /// Called after every block with the number done.
  using Progress = std::function<void(int done, int total)>;

  /// Tokens [1, L] int64, of which those from `length` on are padding: it is computed, but nothing
  /// attends to it. Runs of the vision's `image_token_id` are places of pictures.
  struct Text {
    at::Tensor ids;
    std::int64_t length = 0;
  };
  /// Returns states [1, L, states_width] of each text, all of which have places for the same
  /// pictures, in their order; every block is read once for all texts. Throws std::invalid_argument
  /// for an id that the vocabulary lacks and for places that are not the pictures',
  /// std::runtime_error for a weight that is not finite.
  std::vector<at::Tensor> encode_each(const std::vector<Text>& texts, const Progress& progress = {},
                                      const std::vector<VisionPatches>& pictures = {}) const;

 private:
  /// Returns the name that the files have for a tensor.
  std::string stored_name(const std::string& name) const;
  const at::Tensor& weight(const std::string& name) const;
  at::Tensor norm(const at::Tensor& states, const std::string& name) const;
  at::Tensor linear(const at::Tensor& states, const std::string& name) const;
  /// Angles that a text's tokens turn by, [L, head_dim] each.
  struct Turns {
    at::Tensor cosine, sine;
  };
  /// Returns the turns of tokens at these positions, [1, L], or [3, L]: a time, a row and a column
  /// of each.
  Turns turns_at(const at::Tensor& positions) const;
  /// Returns the positions [3, L] of a text with places for pictures: within each the tokens of a
  /// row, and those of a column, have one coordinate in common, and the text goes on behind the
  /// longer side.
  at::Tensor positions_of(const Text& text, const std::vector<VisionPatches>& pictures) const;
  at::Tensor attend(const at::Tensor& states, std::int64_t length, const Turns& turns,
                    const std::string& prefix) const;
  at::Tensor feed_forward(const at::Tensor& states, const std::string& prefix) const;

  spec::QwenTextSpec spec_;
  mutable EncoderWeights weights_;
  at::ScalarType dtype_;
  at::Device device_;
};

}  // namespace troupe::models
