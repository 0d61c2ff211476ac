#pragma once

#include <string>

#include "tests/spec/published_folder.h"

namespace troupe::testing {

/// Qwen3-8B, and what FLUX.2-klein has beside it.
inline constexpr const char* kQwen38bConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 12288,
  "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
  "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps":
  1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

inline constexpr const char* kKleinModelIndex = R"({
  "_class_name": "Flux2KleinPipeline", "_diffusers_version": "0.37.0.dev0", "is_distilled": true,
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "Qwen3ForCausalLM"],
  "tokenizer": ["transformers", "Qwen2TokenizerFast"],
  "transformer": ["diffusers", "Flux2Transformer2DModel"],
  "vae": ["diffusers", "AutoencoderKLFlux2"]})";

inline constexpr const char* kFlux2VaeConfig = R"({
  "_class_name": "AutoencoderKLFlux2", "_diffusers_version": "0.37.0.dev0", "act_fn": "silu",
  "batch_norm_eps": 0.0001, "batch_norm_momentum": 0.1, "block_out_channels": [128, 256, 512, 512],
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D",
  "DownEncoderBlock2D"], "force_upcast": true, "in_channels": 3, "latent_channels": 32,
  "layers_per_block": 2, "mid_block_add_attention": true, "norm_num_groups": 32, "out_channels": 3,
  "patch_size": [2, 2], "sample_size": 1024, "up_block_types": ["UpDecoderBlock2D",
  "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"], "use_post_quant_conv": true,
  "use_quant_conv": true})";

/// FLUX.2-klein, with the Qwen3 that belongs to its size; the base models are not distilled.
inline PublishedJointFolder published_klein(const PublishedTransformer& transformer,
                                            const char* text_encoder, bool distilled = true) {
  std::string index = kKleinModelIndex;
  if (!distilled) index.replace(index.find("true"), 4, "false");
  return {index.c_str(),
          kFluxScheduler,
          transformer,
          {{"text_encoder", "tokenizer", text_encoder, false, false}},
          kFlux2VaeConfig};
}

}  // namespace troupe::testing
