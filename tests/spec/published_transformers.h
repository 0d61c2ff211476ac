#pragma once

#include <cstdint>

// The transformers' config.json of published checkpoints, and what diffusers 0.42 makes of each:
// how many tensors and elements, and a hash (FNV-1a, 64 bits) of its sorted lines "name [a, b]\n".

namespace troupe::testing {

struct PublishedTransformer {
  const char* config;
  std::uint64_t tensors;
  std::uint64_t elements;
  std::uint64_t names_and_shapes;
};

inline constexpr PublishedTransformer kSd3MediumConfig = {R"(
  {"_class_name": "SD3Transformer2DModel", "_diffusers_version": "0.29.0", "attention_head_dim":
  64, "caption_projection_dim": 1536, "in_channels": 16, "joint_attention_dim": 4096,
  "num_attention_heads": 24, "num_layers": 24, "out_channels": 16, "patch_size": 2,
  "pooled_projection_dim": 2048, "pos_embed_max_size": 192, "sample_size": 128})",
                                                          683, 2084951104, 0x79680d0675d76495};

inline constexpr PublishedTransformer kSd35MediumConfig = {R"(
  {"_class_name": "SD3Transformer2DModel", "_diffusers_version": "0.29.0", "attention_head_dim":
  64, "caption_projection_dim": 1536, "dual_attention_layers": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9,
  10, 11, 12], "in_channels": 16, "joint_attention_dim": 4096, "num_attention_heads": 24,
  "num_layers": 24, "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 2048,
  "pos_embed_max_size": 384, "qk_norm": "rms_norm", "sample_size": 128})",
                                                           909, 2469663936, 0x7765f8752a8a1265};

inline constexpr PublishedTransformer kSd35LargeConfig = {R"(
  {"_class_name": "SD3Transformer2DModel", "_diffusers_version": "0.29.0", "attention_head_dim":
  64, "caption_projection_dim": 2432, "dual_attention_layers": [], "in_channels": 16,
  "joint_attention_dim": 4096, "num_attention_heads": 38, "num_layers": 38, "out_channels": 16,
  "patch_size": 2, "pooled_projection_dim": 2048, "pos_embed_max_size": 192, "qk_norm":
  "rms_norm", "sample_size": 128})",
                                                          1227, 8146280768, 0x32f6a33a2054dac4};

inline constexpr PublishedTransformer kFluxDevConfig = {R"(
  {"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.29.0",
  "attention_head_dim": 128, "guidance_embeds": true, "in_channels": 64, "joint_attention_dim":
  4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "patch_size": 1,
  "pooled_projection_dim": 768})",
                                                        1160, 11901408320, 0x397e3e5712bb9ea1};

/// FLUX.1 Fill and Depth, by the sizes in diffusers' conversion of their weights.
inline constexpr PublishedTransformer kFluxFillConfig = {R"(
  {"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.32.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "guidance_embeds": true,
  "in_channels": 384, "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19,
  "num_single_layers": 38, "out_channels": 64, "patch_size": 1, "pooled_projection_dim": 768})",
                                                         1160, 11902391360, 0};
inline constexpr PublishedTransformer kFluxDepthConfig = {R"(
  {"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.32.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "guidance_embeds": true,
  "in_channels": 128, "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19,
  "num_single_layers": 38, "out_channels": 64, "patch_size": 1, "pooled_projection_dim": 768})",
                                                          1160, 11901604928, 0};

inline constexpr PublishedTransformer kFluxSchnellConfig = {R"(
  {"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.29.0",
  "attention_head_dim": 128, "guidance_embeds": false, "in_channels": 64, "joint_attention_dim":
  4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers": 38, "patch_size": 1,
  "pooled_projection_dim": 768})",
                                                            1156, 11891178560, 0x8585c741783f2b6a};

inline constexpr PublishedTransformer kOvisImageConfig = {R"(
  {"_class_name": "OvisImageTransformer2DModel", "_diffusers_version": "0.36.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "in_channels": 64,
  "joint_attention_dim": 2048, "num_attention_heads": 24, "num_layers": 6, "num_single_layers":
  27, "out_channels": 64, "patch_size": 1})",
                                                          583, 7370449728, 0xe1bf89c422491d84};

inline constexpr PublishedTransformer kLongCatImageConfig = {R"(
  {"_class_name": "LongCatImageTransformer2DModel", "_diffusers_version": "0.36.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "in_channels": 64,
  "joint_attention_dim": 3584, "num_attention_heads": 24, "num_layers": 10, "num_single_layers":
  20, "patch_size": 1, "pooled_projection_dim": 3584})",
                                                             612, 6270668864, 0xe58be2449fff776a};

inline constexpr PublishedTransformer kChromaConfig = {R"(
  {"_class_name": "ChromaTransformer2DModel", "_diffusers_version": "0.34.0.dev0",
  "approximator_hidden_dim": 5120, "approximator_layers": 5, "approximator_num_channels": 64,
  "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "in_channels": 64,
  "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19, "num_single_layers":
  38, "out_channels": null, "patch_size": 1})",
                                                       1023, 8899983424, 0x6e72e1838cd1fcf9};

inline constexpr PublishedTransformer kZImageConfig = {R"(
  {"_class_name": "ZImageTransformer2DModel", "_diffusers_version": "0.36.0.dev0",
  "all_f_patch_size": [1], "all_patch_size": [2], "axes_dims": [32, 48, 48], "axes_lens": [1536,
  512, 512], "cap_feat_dim": 2560, "dim": 3840, "in_channels": 16, "n_heads": 30, "n_kv_heads": 30,
  "n_layers": 30, "n_refiner_layers": 2, "norm_eps": 1e-05, "qk_norm": true, "rope_theta": 256.0,
  "t_scale": 1000.0})",
                                                       521, 6154908736, 0x67d456d68138f4e5};

inline constexpr PublishedTransformer kHunyuanV12Config = {R"(
  {"_class_name": "HunyuanDiT2DModel", "_diffusers_version": "0.29.0", "activation_fn":
  "gelu-approximate", "attention_head_dim": 88, "cross_attention_dim": 1024,
  "cross_attention_dim_t5": 2048, "hidden_size": 1408, "in_channels": 4, "learn_sigma": true,
  "mlp_ratio": 4.3637, "norm_type": "layer_norm", "num_attention_heads": 16, "num_layers": 40,
  "patch_size": 2, "pooled_projection_dim": 1024, "sample_size": 128, "text_len": 77,
  "text_len_t5": 256, "use_style_cond_and_image_meta_size": false})",
                                                           1544, 1499952032, 0xdec66c7e39a8ae47};

inline constexpr PublishedTransformer kHunyuanV11Config = {R"(
  {"_class_name": "HunyuanDiT2DModel", "_diffusers_version": "0.29.0", "activation_fn":
  "gelu-approximate", "attention_head_dim": 88, "cross_attention_dim": 1024,
  "cross_attention_dim_t5": 2048, "hidden_size": 1408, "in_channels": 4, "learn_sigma": true,
  "mlp_ratio": 4.3637, "norm_type": "layer_norm", "num_attention_heads": 16, "num_layers": 40,
  "patch_size": 2, "pooled_projection_dim": 1024, "sample_size": 128, "text_len": 77,
  "text_len_t5": 256})",
                                                           1545, 1516534048, 0x1e4df8d0fd2c2fed};

inline constexpr PublishedTransformer kPixArtSigmaConfig = {R"(
  {"_class_name": "PixArtTransformer2DModel", "_diffusers_version": "0.29.0", "activation_fn":
  "gelu-approximate", "attention_bias": true, "attention_head_dim": 72, "attention_type":
  "default", "caption_channels": 4096, "cross_attention_dim": 1152, "dropout": 0.0,
  "in_channels": 4, "interpolation_scale": 2, "norm_elementwise_affine": false, "norm_eps":
  1e-06, "norm_num_groups": 32, "norm_type": "ada_norm_single", "num_attention_heads": 16,
  "num_embeds_ada_norm": 1000, "num_layers": 28, "out_channels": 8, "patch_size": 2,
  "sample_size": 128, "upcast_attention": false, "use_additional_conditions": false})",
                                                            603, 610856096, 0xdb4c22adf17fb25d};

inline constexpr PublishedTransformer kWan13bConfig = {R"(
  {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0", "added_kv_proj_dim":
  null, "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06, "ffn_dim": 8960,
  "freq_dim": 256, "image_dim": null, "in_channels": 16, "num_attention_heads": 12, "num_layers":
  30, "out_channels": 16, "patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads",
  "rope_max_seq_len": 1024, "text_dim": 4096})",
                                                       825, 1418996800, 0xc571469248cc4315};

inline constexpr PublishedTransformer kWan14bConfig = {R"(
  {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0", "added_kv_proj_dim":
  null, "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06, "ffn_dim": 13824,
  "freq_dim": 256, "image_dim": null, "in_channels": 16, "num_attention_heads": 40, "num_layers":
  40, "out_channels": 16, "patch_size": [1, 2, 2], "qk_norm": "rms_norm_across_heads",
  "rope_max_seq_len": 1024, "text_dim": 4096})",
                                                       1095, 14288491584, 0x268a2a721a18358b};

inline constexpr PublishedTransformer kWanI2vConfig = {R"(
  {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0.dev0",
  "added_kv_proj_dim": 5120, "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06,
  "ffn_dim": 13824, "freq_dim": 256, "image_dim": 1280, "in_channels": 36, "num_attention_heads":
  40, "num_layers": 40, "out_channels": 16, "patch_size": [1, 2, 2], "qk_norm":
  "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096})",
                                                       1303, 16394878784, 0x60fe0b832118ad91};

inline constexpr PublishedTransformer kWanFlf2vConfig = {R"(
  {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.33.0.dev0",
  "added_kv_proj_dim": 5120, "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06,
  "ffn_dim": 13824, "freq_dim": 256, "image_dim": 1280, "in_channels": 36, "num_attention_heads":
  40, "num_layers": 40, "out_channels": 16, "patch_size": [1, 2, 2], "pos_embed_seq_len": 514,
  "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096})",
                                                         1304, 16395536704, 0xea3df6b69bcf6b3d};

inline constexpr PublishedTransformer kWanI2vA14bConfig = {R"(
  {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.35.0.dev0",
  "added_kv_proj_dim": null, "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06,
  "ffn_dim": 13824, "freq_dim": 256, "image_dim": null, "in_channels": 36, "num_attention_heads":
  40, "num_layers": 40, "out_channels": 16, "patch_size": [1, 2, 2], "pos_embed_seq_len": null,
  "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096})",
                                                           1095, 14288901184, 0x6de209ebd2c040e9};

inline constexpr PublishedTransformer kWan22Ti2vConfig = {R"(
  {"_class_name": "WanTransformer3DModel", "_diffusers_version": "0.35.0.dev0",
  "added_kv_proj_dim": null, "attention_head_dim": 128, "cross_attn_norm": true, "eps": 1e-06,
  "ffn_dim": 14336, "freq_dim": 256, "image_dim": null, "in_channels": 48, "num_attention_heads":
  24, "num_layers": 30, "out_channels": 48, "patch_size": [1, 2, 2], "pos_embed_seq_len": null,
  "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096})",
                                                          825, 4999787712, 0x4e57b5545cfc15e5};

inline constexpr PublishedTransformer kQwenImageConfig = {R"(
  {"_class_name": "QwenImageTransformer2DModel", "_diffusers_version": "0.34.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [16, 56, 56], "guidance_embeds": false,
  "in_channels": 64, "joint_attention_dim": 3584, "num_attention_heads": 24, "num_layers": 60,
  "out_channels": 16, "patch_size": 2, "pooled_projection_dim": 768})",
                                                          1933, 20430401088, 0x9fbe6eca399ba687};

inline constexpr PublishedTransformer kKlein4bConfig = {R"(
  {"_class_name": "Flux2Transformer2DModel", "_diffusers_version": "0.37.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [32, 32, 32, 32], "eps": 1e-06, "guidance_embeds":
  false, "in_channels": 128, "joint_attention_dim": 7680, "mlp_ratio": 3.0, "num_attention_heads":
  24, "num_layers": 5, "num_single_layers": 20, "out_channels": null, "patch_size": 1,
  "rope_theta": 2000, "timestep_guidance_channels": 256})",
                                                        169, 3875544576, 0x45d0c166b9a2c730};

inline constexpr PublishedTransformer kKlein9bConfig = {R"(
  {"_class_name": "Flux2Transformer2DModel", "_diffusers_version": "0.37.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [32, 32, 32, 32], "eps": 1e-06, "guidance_embeds":
  false, "in_channels": 128, "joint_attention_dim": 12288, "mlp_ratio": 3.0, "num_attention_heads":
  32, "num_layers": 8, "num_single_layers": 24, "out_channels": null, "patch_size": 1,
  "rope_theta": 2000, "timestep_guidance_channels": 256})",
                                                        233, 9078581248, 0x293992c22b5e1cc};

inline constexpr PublishedTransformer kKrea2Config = {R"(
  {"_class_name": "Krea2Transformer2DModel", "_diffusers_version": "0.39.0.dev0",
  "attention_head_dim": 128, "axes_dims_rope": [32, 48, 48], "in_channels": 64,
  "intermediate_size": 16384, "norm_eps": 1e-05, "num_attention_heads": 48,
  "num_key_value_heads": 12, "num_layers": 28, "num_layerwise_text_blocks": 2,
  "num_refiner_text_blocks": 2, "rope_theta": 1000.0, "text_hidden_dim": 2560,
  "text_intermediate_size": 6912, "text_num_attention_heads": 20, "text_num_key_value_heads": 20,
  "num_text_layers": 12, "timestep_embed_dim": 256})",
                                                      430, 12820073036, 0x7f99b889cf292793};

}  // namespace troupe::testing
