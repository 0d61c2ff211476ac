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
    weights("vae", "diffusion_pytorch_model",
            spec::expected_tensors(spec::read_vae_spec(config("vae"))));
    for (const auto& encoder : encoders)
      add(encoder);
  }
  const std::filesystem::path& path() const { return folder_.path; }

 private:
  void add(const Encoder& encoder) const {
    const std::string component = encoder.component, tokenizer = encoder.tokenizer;
    const bool bert = std::string(encoder.config).find("\"BertModel\"") != std::string::npos;
    write(component + "/config.json", encoder.config);
    write(tokenizer + (encoder.clip ? "/vocab.json" : bert ? "/vocab.txt" : "/spiece.model"), "x");
    if (encoder.clip) write(tokenizer + "/merges.txt", "x");
    if (encoder.tokenizer_config != nullptr)
      write(tokenizer + "/tokenizer_config.json", encoder.tokenizer_config);
    const auto from = config(component);
    weights(component, "model",
            encoder.clip ? spec::expected_tensors(spec::read_clip_spec(from, encoder.projects))
            : bert       ? spec::expected_tensors(spec::read_bert_spec(from))
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

inline PublishedJointFolder published_flux(const PublishedTransformer& transformer) {
  return {kFluxModelIndex,
          kFluxScheduler,
          transformer,
          {{"text_encoder", "tokenizer", kClipLConfig, true, false},
           {"text_encoder_2", "tokenizer_2", kT5XxlConfig, false, false}}};
}

}  // namespace troupe::testing
