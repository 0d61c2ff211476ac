#pragma once

#include <string>

#include "tests/spec/published_folder.h"
#include "tests/spec/published_qwen_image.h"

namespace troupe::testing {

/// The text's half of Qwen3-VL-4B, and what Krea 2 has beside it.
inline constexpr const char* kQwen3Vl4bConfig = R"({
  "architectures": ["Qwen3VLModel"], "dtype": "bfloat16", "image_token_id": 151655, "model_type":
  "qwen3_vl", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id":
  151643, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
  "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32,
  "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling":
  {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"},
  "rope_theta": 5000000, "tie_word_embeddings": true, "use_cache": true, "vocab_size": 151936},
  "tie_word_embeddings": true, "transformers_version": "4.57.0.dev0", "video_token_id": 151656,
  "vision_config": {"depth": 24}, "vision_end_token_id": 151653, "vision_start_token_id": 151652})";

inline constexpr const char* kKrea2ModelIndex = R"({
  "_class_name": "Krea2Pipeline", "_diffusers_version": "0.39.0.dev0", "is_distilled": false,
  "patch_size": 2, "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "Qwen3VLModel"], "text_encoder_select_layers": [2, 5, 8, 11,
  14, 17, 20, 23, 26, 29, 32, 35], "tokenizer": ["transformers", "Qwen2Tokenizer"],
  "transformer": ["diffusers", "Krea2Transformer2DModel"],
  "vae": ["diffusers", "AutoencoderKLQwenImage"]})";

inline constexpr const char* kKrea2Scheduler = R"({
  "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.39.0.dev0",
  "base_image_seq_len": 256, "base_shift": 0.5, "invert_sigmas": false, "max_image_seq_len": 6400,
  "max_shift": 1.15, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": null,
  "stochastic_sampling": false, "time_shift_type": "exponential", "use_beta_sigmas": false,
  "use_dynamic_shifting": true, "use_exponential_sigmas": false, "use_karras_sigmas": false})";

inline PublishedJointFolder published_krea2(const std::string& index = kKrea2ModelIndex) {
  return {index.c_str(),
          kKrea2Scheduler,
          kKrea2Config,
          {{"text_encoder", "tokenizer", kQwen3Vl4bConfig, false, false}},
          kQwenImageVaeConfig};
}

}  // namespace troupe::testing
