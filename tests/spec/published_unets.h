#pragma once

#include <string>
#include <vector>

#include "models/spec/model_spec.h"
#include "tests/spec/model_folder.h"
#include "tests/spec/published_configs.h"

// Configs of published Stable Diffusion checkpoints.
namespace troupe::testing {

inline constexpr const char* kSdxlIndex = R"({
  "_class_name": "StableDiffusionXLPipeline", "_diffusers_version": "0.19.0.dev0",
  "force_zeros_for_empty_prompt": true, "add_watermarker": null,
  "scheduler": ["diffusers", "EulerDiscreteScheduler"],
  "text_encoder": ["transformers", "CLIPTextModel"],
  "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
  "tokenizer": ["transformers", "CLIPTokenizer"],
  "tokenizer_2": ["transformers", "CLIPTokenizer"],
  "unet": ["diffusers", "UNet2DConditionModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline constexpr const char* kSdxlUNet = R"({
  "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.19.0.dev0", "act_fn": "silu",
  "addition_embed_type": "text_time", "addition_embed_type_num_heads": 64,
  "addition_time_embed_dim": 256, "attention_head_dim": [5, 10, 20],
  "block_out_channels": [320, 640, 1280], "center_input_sample": false, "class_embed_type": null,
  "class_embeddings_concat": false, "conv_in_kernel": 3, "conv_out_kernel": 3,
  "cross_attention_dim": 2048, "cross_attention_norm": null,
  "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
  "downsample_padding": 1, "dual_cross_attention": false, "encoder_hid_dim": null,
  "encoder_hid_dim_type": null, "flip_sin_to_cos": true, "freq_shift": 0, "in_channels": 4,
  "layers_per_block": 2, "mid_block_only_cross_attention": null, "mid_block_scale_factor": 1,
  "mid_block_type": "UNetMidBlock2DCrossAttn", "norm_eps": 1e-05, "norm_num_groups": 32,
  "num_attention_heads": null, "num_class_embeds": null, "only_cross_attention": false,
  "out_channels": 4, "projection_class_embeddings_input_dim": 2816,
  "resnet_out_scale_factor": 1.0, "resnet_skip_time_act": false,
  "resnet_time_scale_shift": "default", "sample_size": 128, "time_cond_proj_dim": null,
  "time_embedding_act_fn": null, "time_embedding_dim": null, "time_embedding_type": "positional",
  "timestep_post_act": null, "transformer_layers_per_block": [1, 2, 10],
  "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
  "upcast_attention": null, "use_linear_projection": true})";

inline constexpr const char* kSdxlScheduler = R"({
  "_class_name": "EulerDiscreteScheduler", "_diffusers_version": "0.19.0.dev0",
  "beta_end": 0.012, "beta_schedule": "scaled_linear", "beta_start": 0.00085,
  "clip_sample": false, "interpolation_type": "linear", "num_train_timesteps": 1000,
  "prediction_type": "epsilon", "sample_max_value": 1.0, "set_alpha_to_one": false,
  "skip_prk_steps": true, "steps_offset": 1, "timestep_spacing": "leading",
  "trained_betas": null, "use_karras_sigmas": false})";

inline constexpr const char* kSd15Index = R"({
  "_class_name": "StableDiffusionPipeline", "_diffusers_version": "0.6.0",
  "feature_extractor": ["transformers", "CLIPImageProcessor"],
  "safety_checker": ["stable_diffusion", "StableDiffusionSafetyChecker"],
  "scheduler": ["diffusers", "PNDMScheduler"],
  "text_encoder": ["transformers", "CLIPTextModel"],
  "tokenizer": ["transformers", "CLIPTokenizer"],
  "unet": ["diffusers", "UNet2DConditionModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline constexpr const char* kSd15UNet = R"({
  "_class_name": "UNet2DConditionModel", "_diffusers_version": "0.6.0", "act_fn": "silu",
  "attention_head_dim": 8, "block_out_channels": [320, 640, 1280, 1280],
  "center_input_sample": false, "cross_attention_dim": 768,
  "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D",
                       "DownBlock2D"],
  "downsample_padding": 1, "flip_sin_to_cos": true, "freq_shift": 0, "in_channels": 4,
  "layers_per_block": 2, "mid_block_scale_factor": 1, "norm_eps": 1e-05, "norm_num_groups": 32,
  "out_channels": 4, "sample_size": 64,
  "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D",
                     "CrossAttnUpBlock2D"]})";

inline constexpr const char* kSd15Scheduler = R"({
  "_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0", "beta_end": 0.012,
  "beta_schedule": "scaled_linear", "beta_start": 0.00085, "num_train_timesteps": 1000,
  "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1, "trained_betas": null,
  "clip_sample": false})";

inline constexpr const char* kKlVaeConfig = R"({
  "_class_name": "AutoencoderKL", "_diffusers_version": "0.20.0.dev0", "act_fn": "silu",
  "block_out_channels": [128, 256, 512, 512],
  "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D",
                       "DownEncoderBlock2D"],
  "force_upcast": true, "in_channels": 3, "latent_channels": 4, "layers_per_block": 2,
  "norm_num_groups": 32, "out_channels": 3, "sample_size": 1024, "scaling_factor": 0.13025,
  "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D",
                     "UpDecoderBlock2D"]})";

/// A folder as published, its weights holes of full size.
class PublishedUNetFolder {
 public:
  explicit PublishedUNetFolder(bool xl) {
    write("model_index.json", xl ? kSdxlIndex : kSd15Index);
    write("scheduler/scheduler_config.json", xl ? kSdxlScheduler : kSd15Scheduler);
    write("unet/config.json", xl ? kSdxlUNet : kSd15UNet);
    write("vae/config.json", kKlVaeConfig);
    weights("unet", "diffusion_pytorch_model",
            spec::expected_tensors(spec::UNetSpec::read(config("unet"))));
    weights("vae", "diffusion_pytorch_model",
            spec::expected_tensors(spec::read_vae_spec(config("vae"))));
    for (const bool second : {false, true}) {
      if (second && !xl) continue;
      const std::string end = second ? "_2" : "";
      write("text_encoder" + end + "/config.json", second ? kClipGConfig : kClipLConfig);
      write("tokenizer" + end + "/vocab.json", "x");
      write("tokenizer" + end + "/merges.txt", "x");
      weights("text_encoder" + end, "model",
              spec::expected_tensors(spec::read_clip_spec(config("text_encoder" + end), second)));
    }
  }
  const std::filesystem::path& path() const { return folder_.path; }

 private:
  spec::ConfigReader config(const std::string& component) const {
    return spec::ConfigReader::read(path() / component / "config.json");
  }
  void write(const std::string& name, const std::string& text) const {
    write_bytes(path() / name, text);
  }
  void weights(const std::string& component, const std::string& stem,
               const std::vector<spec::ExpectedTensor>& tensors) const {
    write_sparse_weights(path() / component / (stem + ".safetensors"), tensors,
                         spec::Dtype::float16);
  }

  Scratch folder_;
};

}  // namespace troupe::testing
