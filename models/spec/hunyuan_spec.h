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

/// `transformer/config.json` of a HunyuanDiT2DModel. Defaults are diffusers'.
struct HunyuanSpec {
  static constexpr std::string_view kClasses[] = {"HunyuanDiT2DModel"};
  /// Refuses what is not supported by key and value.
  static HunyuanSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  std::int64_t num_attention_heads = 16;
  std::int64_t attention_head_dim = 88;
  std::int64_t in_channels = 4;
  std::int64_t patch_size = 2;
  std::int64_t sample_size = 32;
  std::int64_t num_layers = 28;
  double mlp_ratio = 4;
  bool learn_sigma = true;
  std::int64_t cross_attention_dim = 1024;
  std::int64_t cross_attention_dim_t5 = 2048;
  std::int64_t pooled_projection_dim = 1024;
  std::int64_t text_len = 77;
  std::int64_t text_len_t5 = 256;
  /// Style and sizes of the picture are part of the condition: up to version 1.1.
  bool use_style_cond_and_image_meta_size = true;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  std::int64_t ff_inner_dim() const {
    return static_cast<std::int64_t>(static_cast<double>(inner_dim()) * mlp_ratio);
  }
  /// Width of what is embedded beside the timestep.
  std::int64_t extra_dim() const;
  /// Returns whether a block takes up the hidden states that an earlier block left, and whether a
  /// block leaves such states.
  bool takes_skip(std::int64_t block) const { return block > num_layers / 2; }
  bool leaves_skip(std::int64_t block) const { return block < num_layers / 2 - 1; }

  bool operator==(const HunyuanSpec&) const = default;
};

std::vector<PlannedTensor> planned_tensors(const HunyuanSpec& spec);
TransformerFacts facts_of(const HunyuanSpec& spec);
void check_fit(const HunyuanSpec& spec, const FitCheck& fit);

}  // namespace troupe::spec
