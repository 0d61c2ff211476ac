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
/// the text's half of a Qwen2.5-VL's or Qwen3-VL's. Defaults are those of Qwen3Config.
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
/// Reads the text's half of a Qwen3-VL's config, which is a Qwen3 whose texts have the same
/// positions as those of a Qwen2.5-VL. Refuses what is not supported by key and value.
QwenTextSpec read_qwen3_vl_spec(const ConfigReader& config);
/// Reads the config of a text encoder of this class, one of Qwen's.
QwenTextSpec read_qwen_spec(const std::string& class_name, const ConfigReader& config);

/// Every tensor that is computed with, in transformers' names.
std::vector<ExpectedTensor> expected_tensors(const QwenTextSpec& spec);

/// Returns whether a tensor is ignored: the head that predicts words, the vision tower where no
/// pictures are seen, and layers that are not used.
bool is_ignorable_qwen_tensor(const QwenTextSpec& spec, std::string_view name);

/// Returns whether a tensor is of the vision tower.
bool is_qwen_vision_tensor(std::string_view name);

/// "model.layers.7."
std::string qwen_block_prefix(std::int64_t block);

/// Returns the names that a tensor may have instead: in checkpoints of the model without its head,
/// and of a Qwen3-VL, with and without it.
std::vector<std::string> other_qwen_names(const std::string& name);

}  // namespace troupe::spec
