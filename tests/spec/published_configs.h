#pragma once

// The settings of published checkpoints, as facts to load: PixArt-alpha/PixArt-XL-2-512x512 and
// PixArt-XL-2-1024-MS (diffusers 0.22), the T5 v1.1 XXL encoder and Stable Diffusion's VAE.

namespace troupe::testing {

inline constexpr const char* kPixArtModelIndex = R"({
  "_class_name": "PixArtAlphaPipeline", "_diffusers_version": "0.22.0.dev0",
  "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
  "text_encoder": ["transformers", "T5EncoderModel"],
  "tokenizer": ["transformers", "T5Tokenizer"],
  "transformer": ["diffusers", "Transformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline constexpr const char* kPixArtXl512Config = R"({
  "_class_name": "Transformer2DModel", "_diffusers_version": "0.22.0.dev0",
  "activation_fn": "gelu-approximate", "attention_bias": true, "attention_head_dim": 72,
  "attention_type": "default", "caption_channels": 4096, "cross_attention_dim": 1152,
  "double_self_attention": false, "dropout": 0.0, "in_channels": 4,
  "norm_elementwise_affine": false, "norm_eps": 1e-06, "norm_num_groups": 32,
  "norm_type": "ada_norm_single", "num_attention_heads": 16, "num_embeds_ada_norm": 1000,
  "num_layers": 28, "num_vector_embeds": null, "only_cross_attention": false, "out_channels": 8,
  "patch_size": 2, "sample_size": 64, "upcast_attention": false, "use_linear_projection": false})";

inline constexpr const char* kPixArtXl1024Config = R"({
  "_class_name": "Transformer2DModel", "_diffusers_version": "0.22.0.dev0",
  "activation_fn": "gelu-approximate", "attention_bias": true, "attention_head_dim": 72,
  "attention_type": "default", "caption_channels": 4096, "cross_attention_dim": 1152,
  "double_self_attention": false, "dropout": 0.0, "in_channels": 4,
  "norm_elementwise_affine": false, "norm_eps": 1e-06, "norm_num_groups": 32,
  "norm_type": "ada_norm_single", "num_attention_heads": 16, "num_embeds_ada_norm": 1000,
  "num_layers": 28, "num_vector_embeds": null, "only_cross_attention": false, "out_channels": 8,
  "patch_size": 2, "sample_size": 128, "upcast_attention": false, "use_linear_projection": false})";

inline constexpr const char* kT5XxlConfig = R"({
  "architectures": ["T5EncoderModel"], "d_ff": 10240, "d_kv": 64, "d_model": 4096,
  "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1, "eos_token_id": 1,
  "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": true,
  "is_gated_act": true, "layer_norm_epsilon": 1e-06, "model_type": "t5", "num_decoder_layers": 24,
  "num_heads": 64, "num_layers": 24, "output_past": true, "pad_token_id": 0,
  "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
  "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.21.1",
  "use_cache": true, "vocab_size": 32128})";

inline constexpr const char* kSdVaeConfig = R"({
  "_class_name": "AutoencoderKL", "_diffusers_version": "0.22.0.dev0", "act_fn": "silu",
  "block_out_channels": [128, 256, 512, 512],
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D",
                       "DownEncoderBlock2D"],
  "force_upcast": true, "in_channels": 3, "latent_channels": 4, "layers_per_block": 2,
  "norm_num_groups": 32, "out_channels": 3, "sample_size": 256, "scaling_factor": 0.18215,
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D",
                     "UpDecoderBlock2D"]})";

inline constexpr const char* kPixArtScheduler = R"({
  "_class_name": "DPMSolverMultistepScheduler", "_diffusers_version": "0.22.0.dev0",
  "algorithm_type": "dpmsolver++", "beta_end": 0.02, "beta_schedule": "linear",
  "beta_start": 0.0001, "dynamic_thresholding_ratio": 0.995, "lambda_min_clipped": -Infinity,
  "lower_order_final": true, "num_train_timesteps": 1000, "prediction_type": "epsilon",
  "sample_max_value": 1.0, "solver_order": 2, "solver_type": "midpoint", "steps_offset": 0,
  "thresholding": false, "timestep_spacing": "linspace", "trained_betas": null,
  "use_karras_sigmas": false, "variance_type": null})";

}  // namespace troupe::testing
