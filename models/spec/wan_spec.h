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

/// `transformer/config.json` of a WanTransformer3DModel. Defaults are diffusers'. A video's frames
/// are taken as one tall picture: token rows of frame 0, then 1, ….
struct WanSpec {
  static constexpr std::string_view kClasses[] = {"WanTransformer3DModel"};
  /// Refuses what is not supported by key and value.
  static WanSpec read(const ConfigReader& config);
  static std::vector<Pipeline> pipelines();

  std::int64_t num_attention_heads = 40;
  std::int64_t attention_head_dim = 128;
  /// Channels of the latents with those that stand beside them, and of the latents alone.
  std::int64_t in_channels = 16;
  std::int64_t out_channels = 16;
  /// Side of a token in latent pixels; it is one latent frame thick.
  std::int64_t patch_size = 2;
  /// Width of the text encoder's states.
  std::int64_t text_dim = 4096;
  std::int64_t ffn_dim = 13824;
  std::int64_t num_layers = 40;
  /// The cross attention's input is normed, with weights.
  bool cross_attn_norm = true;
  double eps = 1e-6;
  /// Width of a vision tower's states of the frames that are given; 0: it sees none.
  std::int64_t image_dim = 0;
  /// Number of those states that have learned positions; 0: none.
  std::int64_t pos_embed_seq_len = 0;
  /// Largest number of frames, rows and columns of tokens that the model has positions for.
  std::int64_t rope_max_seq_len = 1024;

  std::int64_t inner_dim() const { return num_attention_heads * attention_head_dim; }
  /// Number of channels of a head that turn by a token's row, and number that turn by its column;
  /// the other channels turn by its frame.
  std::int64_t side_dim() const { return 2 * (attention_head_dim / 6); }
  std::int64_t frame_dim() const { return attention_head_dim - 2 * side_dim(); }

  bool operator==(const WanSpec&) const = default;
};

std::vector<PlannedTensor> planned_tensors(const WanSpec& spec);
TransformerFacts facts_of(const WanSpec& spec);
void check_fit(const WanSpec& spec, const FitCheck& fit);

}  // namespace troupe::spec
