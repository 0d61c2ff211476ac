#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/qwen_vision_spec.h"

namespace troupe::spec {

/// A Qwen language model as a text encoder: `config.json` of a Qwen3ForCausalLM or Qwen3Model, or
/// the text's half of a Qwen2_5_VLForConditionalGeneration's. Defaults are those of Qwen3Config.
struct QwenTextSpec {
  std::int64_t vocab_size = 151936;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 22016;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 32;
  std::int64_t head_dim = 128;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  /// Queries and keys are normed, each head by itself: Qwen3.
  bool qk_norm = true;
  /// Products of queries, keys and values have a bias: Qwen2.
  bool qkv_bias = false;
  /// Numbers of the layers after which states are taken, rising; these stand side by side, and
  /// what comes after the last of them is not computed, nor read. None: the states after all layers
  /// and the last norm are taken.
  std::vector<std::int64_t> taken_layers = {};
  /// The vision tower, where texts have pictures beside them.
  std::optional<QwenVisionSpec> vision = {};

  std::int64_t used_layers() const {
    return taken_layers.empty() ? num_hidden_layers : taken_layers.back();
  }
  /// Width of the states that it gives.
  std::int64_t states_width() const {
    return hidden_size * std::max<std::int64_t>(1, std::ssize(taken_layers));
  }
  bool operator==(const QwenTextSpec&) const = default;
};

/// Reads a Qwen3's config. Refuses what is not supported by key and value.
QwenTextSpec read_qwen3_spec(const ConfigReader& config);
/// Reads the text's half of a Qwen2.5-VL's config, `text_config` or, in older ones, what stands
/// beside the vision's. Text has one position in all three coordinates, so that its rotary
/// positions are plain ones. Refuses what is not supported by key and value.
QwenTextSpec read_qwen2_5_vl_spec(const ConfigReader& config);

/// Every tensor that is computed with, in transformers' names.
std::vector<ExpectedTensor> expected_tensors(const QwenTextSpec& spec);

/// Returns whether a tensor is ignored: the head that predicts words, the vision tower where no
/// pictures are seen, and layers that are not used.
bool is_ignorable_qwen_tensor(const QwenTextSpec& spec, std::string_view name);

/// "model.layers.7."
std::string qwen_block_prefix(std::int64_t block);

/// The name that a tensor may have instead, where a checkpoint is of the model without its head.
std::string without_qwen_root(const std::string& name);

}  // namespace troupe::spec
