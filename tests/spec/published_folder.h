#pragma once

#include <string>
#include <vector>

#include "models/spec/model_spec.h"
#include "tests/spec/model_folder.h"
#include "tests/spec/published_configs.h"
#include "tests/spec/published_transformers.h"

namespace troupe::testing {

/// A model's folder as published: configs, weights of full size as holes, empty vocabularies.
class PublishedJointFolder {
 public:
  struct Encoder {
    const char* component;
    const char* tokenizer;
    const char* config;
    bool clip;
    bool projects;
    const char* tokenizer_config = nullptr;
    /// Config of the processor of pictures that a Qwen2.5-VL sees.
    const char* processor = nullptr;
  };
  PublishedJointFolder(const char* index, const char* scheduler,
                       const PublishedTransformer& transformer,
                       const std::vector<Encoder>& encoders, const char* vae = kFlowVaeConfig) {
    write("model_index.json", index);
    write("scheduler/scheduler_config.json", scheduler);
    write("transformer/config.json", transformer.config);
    write("vae/config.json", vae);
    weights("transformer", "diffusion_pytorch_model",
            spec::expected_tensors(spec::read_transformer_spec(config("transformer"), "")));
    const auto vae_config = config("vae");
    weights("vae", "diffusion_pytorch_model",
            has(vae, "AutoencoderKLQwenImage")
                ? spec::expected_tensors(spec::read_wan_vae_spec(vae_config))
            : has(vae, "AutoencoderKLFlux2")
                ? spec::expected_tensors(spec::read_flux2_vae_spec(vae_config))
                : spec::expected_tensors(spec::read_vae_spec(vae_config)));
    for (const auto& encoder : encoders)
      add(encoder);
  }
  const std::filesystem::path& path() const { return folder_.path; }

 private:
  static bool has(const char* text, const char* part) {
    return std::string(text).find(part) != std::string::npos;
  }
  void add(const Encoder& encoder) const {
    const std::string component = encoder.component, tokenizer = encoder.tokenizer;
    const bool qwen3_vl = has(encoder.config, "Qwen3VL");
    const bool qwen3 = has(encoder.config, "Qwen3"), qwen25 = has(encoder.config, "qwen2_5_vl");
    const bool bert = has(encoder.config, "\"BertModel\"");
    write(component + "/config.json", encoder.config);
    write(tokenizer + (encoder.clip      ? "/vocab.json"
                       : bert            ? "/vocab.txt"
                       : qwen3 || qwen25 ? "/tokenizer.json"
                                         : "/spiece.model"),
          "x");
    if (encoder.clip) write(tokenizer + "/merges.txt", "x");
    if (encoder.tokenizer_config != nullptr)
      write(tokenizer + "/tokenizer_config.json", encoder.tokenizer_config);
    const auto from = config(component);
    if (encoder.processor != nullptr) {
      write("processor/preprocessor_config.json", encoder.processor);
      auto seeing = spec::read_qwen2_5_vl_spec(from);
      seeing.vision = spec::read_qwen_vision_spec(from, path() / "processor", seeing.head_dim,
                                                  seeing.hidden_size);
      return weights(component, "model", spec::expected_tensors(seeing));
    }
    weights(component, "model",
            encoder.clip ? spec::expected_tensors(spec::read_clip_spec(from, encoder.projects))
            : qwen3_vl   ? spec::expected_tensors(spec::read_qwen3_vl_spec(from))
            : qwen3      ? spec::expected_tensors(spec::read_qwen3_spec(from))
            : bert       ? spec::expected_tensors(spec::read_bert_spec(from))
            : qwen25     ? spec::expected_tensors(spec::read_qwen2_5_vl_spec(from))
                         : spec::expected_tensors(spec::read_t5_spec(from)));
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

inline PublishedJointFolder published_sd3(const PublishedTransformer& transformer) {
  return {kSd3ModelIndex,
          kFlowScheduler,
          transformer,
          {{"text_encoder", "tokenizer", kClipLConfig, true, true},
           {"text_encoder_2", "tokenizer_2", kClipGConfig, true, true},
           {"text_encoder_3", "tokenizer_3", kT5XxlConfig, false, false}}};
}

inline PublishedJointFolder published_flux(const PublishedTransformer& transformer,
                                           const std::string& pipeline = "FluxPipeline") {
  std::string index = kFluxModelIndex;
  const std::string own = "FluxPipeline";
  index.replace(index.find(own), own.size(), pipeline);
  return {index.c_str(),
          kFluxScheduler,
          transformer,
          {{"text_encoder", "tokenizer", kClipLConfig, true, false},
           {"text_encoder_2", "tokenizer_2", kT5XxlConfig, false, false}}};
}

inline constexpr const char* kChromaModelIndex = R"({
  "_class_name": "ChromaPipeline", "_diffusers_version": "0.34.0.dev0",
  "feature_extractor": [null, null], "image_encoder": [null, null],
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "T5EncoderModel"],
  "tokenizer": ["transformers", "T5Tokenizer"],
  "transformer": ["diffusers", "ChromaTransformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline PublishedJointFolder published_chroma() {
  return {kChromaModelIndex,
          kFluxScheduler,
          kChromaConfig,
          {{"text_encoder", "tokenizer", kT5XxlConfig, false, false}}};
}

/// Qwen3-4B, and what Z-Image has beside it.
inline constexpr const char* kQwen34bConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
  "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
  "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps":
  1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

inline constexpr const char* kZImageModelIndex = R"({
  "_class_name": "ZImagePipeline", "_diffusers_version": "0.36.0.dev0",
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "Qwen3Model"],
  "tokenizer": ["transformers", "Qwen2Tokenizer"],
  "transformer": ["diffusers", "ZImageTransformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline PublishedJointFolder published_zimage() {
  return {kZImageModelIndex,
          kFlowScheduler,
          kZImageConfig,
          {{"text_encoder", "tokenizer", kQwen34bConfig, false, false}}};
}

/// Qwen3-1.7B, and what Ovis-Image has beside it.
inline constexpr const char* kQwen317bConfig = R"({
  "architectures": ["Qwen3Model"], "attention_bias": false, "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144,
  "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
  "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps":
  1e-06, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
  "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})";

inline constexpr const char* kOvisImageModelIndex = R"({
  "_class_name": "OvisImagePipeline", "_diffusers_version": "0.36.0.dev0",
  "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
  "text_encoder": ["transformers", "Qwen3Model"],
  "tokenizer": ["transformers", "Qwen2TokenizerFast"],
  "transformer": ["diffusers", "OvisImageTransformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline PublishedJointFolder published_ovis() {
  return {kOvisImageModelIndex,
          kFluxScheduler,
          kOvisImageConfig,
          {{"text_encoder", "tokenizer", kQwen317bConfig, false, false}}};
}

}  // namespace troupe::testing
