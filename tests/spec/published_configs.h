#pragma once

// The settings of published checkpoints, as facts to load: PixArt-alpha/PixArt-XL-2-512x512 and
// PixArt-XL-2-1024-MS (diffusers 0.22), the T5 v1.1 XXL encoder Stable Diffusion's VAE; SD3's and
// FLUX.1's CLIP encoders, VAE and schedulers.

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

inline constexpr const char* kClipLConfig = R"({
  "architectures": ["CLIPTextModel"], "attention_dropout": 0.0, "bos_token_id": 0,
  "dropout": 0.0, "eos_token_id": 2, "hidden_act": "quick_gelu", "hidden_size": 768,
  "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": 3072,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 77, "model_type": "clip_text_model",
  "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "projection_dim": 768,
  "torch_dtype": "float16", "transformers_version": "4.41.2", "vocab_size": 49408})";

inline constexpr const char* kClipGConfig = R"({
  "architectures": ["CLIPTextModelWithProjection"], "attention_dropout": 0.0, "bos_token_id": 0,
  "dropout": 0.0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_size": 1280,
  "initializer_factor": 1.0, "initializer_range": 0.02, "intermediate_size": 5120,
  "layer_norm_eps": 1e-05, "max_position_embeddings": 77, "model_type": "clip_text_model",
  "num_attention_heads": 20, "num_hidden_layers": 32, "pad_token_id": 1, "projection_dim": 1280,
  "torch_dtype": "float16", "transformers_version": "4.41.2", "vocab_size": 49408})";

inline constexpr const char* kFlowVaeConfig = R"({
  "_class_name": "AutoencoderKL", "_diffusers_version": "0.29.0", "act_fn": "silu",
  "block_out_channels": [128, 256, 512, 512],
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D",
                       "DownEncoderBlock2D"],
  "force_upcast": true, "in_channels": 3, "latent_channels": 16, "latents_mean": null,
  "latents_std": null, "layers_per_block": 2, "norm_num_groups": 32, "out_channels": 3,
  "sample_size": 1024, "scaling_factor": 1.5305, "shift_factor": 0.0609,
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D",
                     "UpDecoderBlock2D"],
  "use_post_quant_conv": false, "use_quant_conv": false})";

inline constexpr const char* kFlowScheduler = R"({
  "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.29.0",
  "num_train_timesteps": 1000, "shift": 3.0})";

inline constexpr const char* kFluxScheduler = R"({
  "_class_name": "FlowMatchEulerDiscreteScheduler", "_diffusers_version": "0.30.0",
  "base_image_seq_len": 256, "base_shift": 0.5, "max_image_seq_len": 4096, "max_shift": 1.15,
  "num_train_timesteps": 1000, "shift": 3.0, "use_dynamic_shifting": true})";

inline constexpr const char* kSd3ModelIndex = R"({
  "_class_name": "StableDiffusion3Pipeline", "_diffusers_version": "0.29.0",
  "feature_extractor": [null, null], "image_encoder": [null, null],
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
  "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
  "text_encoder_3": ["transformers", "T5EncoderModel"],
  "tokenizer": ["transformers", "CLIPTokenizer"],
  "tokenizer_2": ["transformers", "CLIPTokenizer"],
  "tokenizer_3": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "SD3Transformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline constexpr const char* kFluxModelIndex = R"({
  "_class_name": "FluxPipeline", "_diffusers_version": "0.30.0.dev0",
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "CLIPTextModel"],
  "text_encoder_2": ["transformers", "T5EncoderModel"],
  "tokenizer": ["transformers", "CLIPTokenizer"],
  "tokenizer_2": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "FluxTransformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

}  // namespace troupe::testing
