#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/spec/model_spec.h"
#include "tests/spec/model_folder.h"
#include "tests/spec/published_transformers.h"

namespace troupe::testing {

inline constexpr const char* kWanModelIndex = R"({
  "_class_name": "WanPipeline", "_diffusers_version": "0.33.0.dev0",
  "scheduler": ["diffusers", "UniPCMultistepScheduler"],
  "text_encoder": ["transformers", "UMT5EncoderModel"],
  "tokenizer": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "WanTransformer3DModel"],
  "vae": ["diffusers", "AutoencoderKLWan"]})";

inline constexpr const char* kWanScheduler = R"({
  "_class_name": "UniPCMultistepScheduler", "_diffusers_version": "0.33.0.dev0", "beta_end": 0.02,
  "beta_schedule": "linear", "beta_start": 0.0001, "disable_corrector": [],
  "dynamic_thresholding_ratio": 0.995, "final_sigmas_type": "zero", "flow_shift": 3.0,
  "lower_order_final": true, "num_train_timesteps": 1000, "predict_x0": true, "prediction_type":
  "flow_prediction", "rescale_betas_zero_snr": false, "sample_max_value": 1.0, "solver_order": 2,
  "solver_p": null, "solver_type": "bh2", "steps_offset": 0, "thresholding": false,
  "timestep_spacing": "linspace", "trained_betas": null, "use_beta_sigmas": false,
  "use_exponential_sigmas": false, "use_flow_sigmas": true, "use_karras_sigmas": false})";

inline constexpr const char* kUmt5XxlConfig = R"({
  "architectures": ["UMT5EncoderModel"], "classifier_dropout": 0.0, "d_ff": 10240, "d_kv": 64,
  "d_model": 4096, "decoder_start_token_id": 0, "dense_act_fn": "gelu_new", "dropout_rate": 0.1,
  "eos_token_id": 1, "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0,
  "is_encoder_decoder": true, "is_gated_act": true, "layer_norm_epsilon": 1e-06, "model_type":
  "umt5", "num_decoder_layers": 24, "num_heads": 64, "num_layers": 24, "output_past": true,
  "pad_token_id": 0, "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
  "scalable_attention": true, "tie_word_embeddings": false, "tokenizer_class": "T5Tokenizer",
  "torch_dtype": "bfloat16", "transformers_version": "4.48.0.dev0", "use_cache": true,
  "vocab_size": 256384})";

inline constexpr const char* kWanVaeConfig = R"({
  "_class_name": "AutoencoderKLWan", "_diffusers_version": "0.33.0.dev0", "attn_scales": [],
  "base_dim": 96, "dim_mult": [1, 2, 4, 4], "dropout": 0.0, "latents_mean": [-0.7571, -0.7089,
  -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508, 0.4134, -0.0715, 0.5517, -0.3632, -0.1922,
  -0.9497, 0.2503, -0.2921], "latents_std": [2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708,
  2.6052, 2.0743, 3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.916],
  "num_res_blocks": 2, "temperal_downsample": [false, true, true], "z_dim": 16})";

inline constexpr const char* kWan22ModelIndex = R"({
  "_class_name": "WanPipeline", "_diffusers_version": "0.35.0.dev0", "boundary_ratio": null,
  "expand_timesteps": true,
  "scheduler": ["diffusers", "UniPCMultistepScheduler"],
  "text_encoder": ["transformers", "UMT5EncoderModel"],
  "tokenizer": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "WanTransformer3DModel"], "transformer_2": [null, null],
  "vae": ["diffusers", "AutoencoderKLWan"]})";

inline constexpr const char* kWanA14bModelIndex = R"({
  "_class_name": "WanPipeline", "_diffusers_version": "0.35.0.dev0", "boundary_ratio": 0.875,
  "scheduler": ["diffusers", "UniPCMultistepScheduler"],
  "text_encoder": ["transformers", "UMT5EncoderModel"],
  "tokenizer": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "WanTransformer3DModel"],
  "transformer_2": ["diffusers", "WanTransformer3DModel"],
  "vae": ["diffusers", "AutoencoderKLWan"]})";

inline constexpr const char* kWanI2vModelIndex = R"({
  "_class_name": "WanImageToVideoPipeline", "_diffusers_version": "0.33.0.dev0",
  "image_encoder": ["transformers", "CLIPVisionModel"],
  "image_processor": ["transformers", "CLIPImageProcessor"],
  "scheduler": ["diffusers", "UniPCMultistepScheduler"],
  "text_encoder": ["transformers", "UMT5EncoderModel"],
  "tokenizer": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "WanTransformer3DModel"],
  "vae": ["diffusers", "AutoencoderKLWan"]})";

inline constexpr const char* kWanI2vA14bModelIndex = R"({
  "_class_name": "WanImageToVideoPipeline", "_diffusers_version": "0.35.0.dev0",
  "boundary_ratio": 0.9, "expand_timesteps": false, "image_encoder": [null, null],
  "image_processor": [null, null],
  "scheduler": ["diffusers", "UniPCMultistepScheduler"],
  "text_encoder": ["transformers", "UMT5EncoderModel"],
  "tokenizer": ["transformers", "T5TokenizerFast"],
  "transformer": ["diffusers", "WanTransformer3DModel"],
  "transformer_2": ["diffusers", "WanTransformer3DModel"],
  "vae": ["diffusers", "AutoencoderKLWan"]})";

inline constexpr const char* kClipVisionHConfig = R"({
  "architectures": ["CLIPVisionModel"], "attention_dropout": 0.0, "dropout": 0.0, "hidden_act":
  "gelu", "hidden_size": 1280, "image_size": 224, "initializer_factor": 1.0, "initializer_range":
  0.02, "intermediate_size": 5120, "layer_norm_eps": 1e-05, "model_type": "clip_vision_model",
  "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 32, "patch_size": 14,
  "projection_dim": 1024, "torch_dtype": "float32", "transformers_version": "4.49.0"})";

inline constexpr const char* kClipProcessorConfig = R"({
  "crop_size": {"height": 224, "width": 224}, "do_center_crop": true, "do_convert_rgb": true,
  "do_normalize": true, "do_rescale": true, "do_resize": true, "image_mean": [0.48145466,
  0.4578275, 0.40821073], "image_processor_type": "CLIPImageProcessor", "image_std": [0.26862954,
  0.26130258, 0.27577711], "resample": 3, "rescale_factor": 0.00392156862745098, "size":
  {"shortest_edge": 224}})";

inline constexpr const char* kWan22VaeConfig = R"({
  "_class_name": "AutoencoderKLWan", "_diffusers_version": "0.35.0.dev0", "attn_scales": [],
  "base_dim": 160, "clip_output": false, "decoder_base_dim": 256, "dim_mult": [1, 2, 4, 4],
  "dropout": 0.0, "in_channels": 12, "is_residual": true, "latents_mean": [-0.2289, -0.0052,
  -0.1323, -0.2339, -0.2799, 0.0174, 0.1838, 0.1557, -0.1382, 0.0542, 0.2813, 0.0891, 0.157,
  -0.0098, 0.0375, -0.1825, -0.2246, -0.1207, -0.0698, 0.5109, 0.2665, -0.2108, -0.2158, 0.2502,
  -0.2055, -0.0322, 0.1109, 0.1567, -0.0729, 0.0899, -0.2799, -0.123, -0.0313, -0.1649, 0.0117,
  0.0723, -0.2839, -0.2083, -0.052, 0.3748, 0.0152, 0.1957, 0.1433, -0.2944, 0.3573, -0.0548,
  -0.1681, -0.0667], "latents_std": [0.4765, 1.0364, 0.4514, 1.1677, 0.5313, 0.499, 0.4818, 0.5013,
  0.8158, 1.0344, 0.5894, 1.0901, 0.6885, 0.6165, 0.8454, 0.4978, 0.5759, 0.3523, 0.7135, 0.6804,
  0.5833, 1.4146, 0.8986, 0.5659, 0.7069, 0.5338, 0.4889, 0.4917, 0.4069, 0.4999, 0.6866, 0.4093,
  0.5709, 0.6065, 0.6415, 0.4944, 0.5726, 1.2042, 0.5458, 1.6887, 0.3971, 1.06, 0.3943, 0.5537,
  0.5444, 0.4089, 0.7468, 0.7744], "num_res_blocks": 2, "out_channels": 12, "patch_size": 2,
  "scale_factor_spatial": 16, "scale_factor_temporal": 4, "temperal_downsample": [false, true,
  true], "z_dim": 48})";

/// Wan's folder as published: configs, weights of full size as holes, an empty tokenizer.
class PublishedWanFolder {
 public:
  explicit PublishedWanFolder(const PublishedTransformer& transformer,
                              const char* index = kWanModelIndex, const char* vae = kWanVaeConfig) {
    write("model_index.json", index);
    write("scheduler/scheduler_config.json", kWanScheduler);
    write("vae/config.json", vae);
    write("text_encoder/config.json", kUmt5XxlConfig);
    write("tokenizer/spiece.model", "x");
    add_transformer("transformer", transformer);
    if (index == kWanA14bModelIndex || index == kWanI2vA14bModelIndex)
      add_transformer("transformer_2", transformer);
    const auto coder = spec::read_wan_vae_spec(config("vae"));
    auto both = spec::expected_tensors(coder);
    for (auto& tensor : spec::expected_tensors(coder, spec::VaeHalf::encoder))
      both.push_back(std::move(tensor));
    weights("vae", "diffusion_pytorch_model", both);
    if (index == kWanI2vModelIndex) {
      write("image_encoder/config.json", kClipVisionHConfig);
      write("image_processor/preprocessor_config.json", kClipProcessorConfig);
      weights("image_encoder", "model",
              spec::expected_tensors(spec::read_clip_vision_spec(config("image_encoder"))));
    }
    weights("text_encoder", "model",
            spec::expected_tensors(spec::read_t5_spec(config("text_encoder"))));
  }
  const std::filesystem::path& path() const { return folder_.path; }

 private:
  void add_transformer(const std::string& folder, const PublishedTransformer& transformer) const {
    write(folder + "/config.json", transformer.config);
    weights(folder, "diffusion_pytorch_model",
            spec::expected_tensors(spec::read_transformer_spec(config(folder), "")));
  }
  spec::ConfigReader config(const std::string& component) const {
    return spec::ConfigReader::read(path() / component / "config.json");
  }
  void write(const std::string& name, const std::string& text) const {
    write_bytes(path() / name, text);
  }
  void weights(const std::string& component, const std::string& stem,
               const std::vector<spec::ExpectedTensor>& tensors) const {
    write_sparse_weights(path() / component / (stem + ".safetensors"), tensors,
                         spec::Dtype::bfloat16);
  }

  Scratch folder_;
};

/// Wan 2.2's A14B: two transformers of the shape of Wan 2.1's 14B.
inline PublishedWanFolder published_wan_a14b() {
  return PublishedWanFolder(kWan14bConfig, kWanA14bModelIndex);
}

/// Wan 2.1 from a first frame, or with kWanFlf2vConfig from a first and a last one.
inline PublishedWanFolder published_wan_i2v(const PublishedTransformer& of = kWanI2vConfig) {
  return PublishedWanFolder(of, kWanI2vModelIndex);
}

inline PublishedWanFolder published_wan_i2v_a14b() {
  return PublishedWanFolder(kWanI2vA14bConfig, kWanI2vA14bModelIndex);
}

inline PublishedWanFolder published_wan22() {
  return PublishedWanFolder(kWan22Ti2vConfig, kWan22ModelIndex, kWan22VaeConfig);
}

}  // namespace troupe::testing
