#pragma once

#include <string>

#include "tests/spec/published_folder.h"

namespace troupe::testing {

inline constexpr const char* kQwenImageModelIndex = R"({
  "_class_name": "QwenImagePipeline", "_diffusers_version": "0.34.0.dev0",
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
  "tokenizer": ["transformers", "Qwen2Tokenizer"],
  "transformer": ["diffusers", "QwenImageTransformer2DModel"],
  "vae": ["diffusers", "AutoencoderKLQwenImage"]})";

inline constexpr const char* kQwenImageScheduler = R"({
  "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.34.0.dev0",
  "base_image_seq_len": 256, "base_shift": 0.5, "invert_sigmas": false, "max_image_seq_len": 8192,
  "max_shift": 0.9, "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": 0.02,
  "stochastic_sampling": false, "time_shift_type": "exponential", "use_beta_sigmas": false,
  "use_dynamic_shifting": true, "use_exponential_sigmas": false, "use_karras_sigmas": false})";

inline constexpr const char* kQwenImageVaeConfig = R"({
  "_class_name": "AutoencoderKLQwenImage", "_diffusers_version": "0.34.0.dev0", "attn_scales": [],
  "base_dim": 96, "dim_mult": [1, 2, 4, 4], "dropout": 0.0, "latents_mean": [-0.7571, -0.7089,
  -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922,
  -0.9497, 0.2503, -0.2921], "latents_std": [2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
  2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.916],
  "num_res_blocks": 2, "temperal_downsample": [false, true, true], "z_dim": 16})";

inline constexpr const char* kQwen25VlConfig = R"({
  "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 3584,
  "image_token_id": 151655, "initializer_range": 0.02, "intermediate_size": 18944,
  "max_position_embeddings": 128000, "max_window_layers": 28, "model_type": "qwen2_5_vl",
  "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps":
  1e-06, "rope_scaling": {"mrope_section": [16, 24, 24], "rope_type": "default", "type":
  "default"}, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": false,
  "torch_dtype": "bfloat16", "transformers_version": "4.53.1", "use_cache": true,
  "use_sliding_window": false, "video_token_id": 151656, "vision_config": {"depth": 32},
  "vision_end_token_id": 151653, "vision_start_token_id": 151652, "vision_token_id": 151654,
  "vocab_size": 152064})";

inline constexpr const char* kLongCatImageModelIndex = R"({
  "_class_name": "LongCatImagePipeline", "_diffusers_version": "0.36.0.dev0",
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "Qwen2_5_VLForConditionalGeneration"],
  "text_processor": ["transformers", "Qwen2_5_VLProcessor"],
  "tokenizer": ["transformers", "Qwen2Tokenizer"],
  "transformer": ["diffusers", "LongCatImageTransformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline PublishedJointFolder published_longcat() {
  return {kLongCatImageModelIndex,
          kFluxScheduler,
          kLongCatImageConfig,
          {{"text_encoder", "tokenizer", kQwen25VlConfig, false, false}}};
}

/// Returns the config of a Qwen2.5-VL of 7B with all of its vision tower's.
inline const std::string& qwen25_vl_seeing() {
  static const std::string config = [] {
    std::string text = kQwen25VlConfig;
    const std::string depth = R"("vision_config": {"depth": 32})";
    return text.replace(text.find(depth), depth.size(), R"("vision_config": {"depth": 32,
      "fullatt_block_indexes": [7, 15, 23, 31], "hidden_act": "silu", "hidden_size": 1280,
      "in_channels": 3, "in_chans": 3, "initializer_range": 0.02, "intermediate_size": 3420,
      "model_type": "qwen2_5_vl", "num_heads": 16, "out_hidden_size": 3584, "patch_size": 14,
      "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
      "tokens_per_second": 2, "torch_dtype": "float32", "window_size": 112})");
  }();
  return config;
}

inline constexpr const char* kQwenProcessor = R"({"do_convert_rgb": true, "do_normalize": true,
  "do_rescale": true, "do_resize": true, "image_mean": [0.48145466, 0.4578275, 0.40821073],
  "image_processor_type": "Qwen2VLImageProcessorFast", "image_std": [0.26862954, 0.26130258,
  0.27577711], "max_pixels": 12845056, "merge_size": 2, "min_pixels": 3136, "patch_size": 14,
  "resample": 3, "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 12845056,
  "shortest_edge": 3136}, "temporal_patch_size": 2})";

/// `pipeline`: QwenImageEditPipeline or QwenImageEditPlusPipeline.
inline PublishedJointFolder published_qwen_edit(const std::string& pipeline) {
  std::string index = kQwenImageModelIndex;
  const std::string name = R"("QwenImagePipeline")";
  index.replace(index.find(name), name.size(),
                '"' + pipeline + R"(", "processor": ["transformers", "Qwen2VLProcessor"])");
  return {index.c_str(),
          kQwenImageScheduler,
          kQwenImageConfig,
          {{"text_encoder", "tokenizer", qwen25_vl_seeing().c_str(), false, false, nullptr,
            kQwenProcessor}},
          kQwenImageVaeConfig};
}

inline PublishedJointFolder published_qwen_image() {
  return {kQwenImageModelIndex,
          kQwenImageScheduler,
          kQwenImageConfig,
          {{"text_encoder", "tokenizer", kQwen25VlConfig, false, false}},
          kQwenImageVaeConfig};
}

}  // namespace troupe::testing
