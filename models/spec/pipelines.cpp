#include "models/spec/pipelines.h"

#include <stdexcept>

namespace troupe::spec {
namespace {

const std::vector<std::string> kProjectedClip = {"CLIPTextModelWithProjection"};
const std::vector<std::string> kClipTokenizers = {"CLIPTokenizer", "CLIPTokenizerFast"};
const std::vector<std::string> kBertTokenizers = {"BertTokenizer", "BertTokenizerFast"};
const std::vector<std::string> kMultilingualTokenizers = {"T5Tokenizer", "T5TokenizerFast",
                                                          "MT5Tokenizer", "MT5TokenizerFast"};
const std::vector<std::string> kT5 = {"T5EncoderModel"};
const std::vector<std::string> kT5Tokenizers = {"T5Tokenizer", "T5TokenizerFast"};

const std::vector<Pipeline>& pipelines() {
  static const std::vector<Pipeline> all = {
      {.name = "PixArtAlphaPipeline",
       .transformers = {"PixArtTransformer2DModel", "Transformer2DModel"},
       .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers}},
       .text_tokens = 120,
       .pixart_customs = true,
       .one_step_is_clean = true},
      {.name = "PixArtSigmaPipeline",
       .transformers = {"PixArtTransformer2DModel", "Transformer2DModel"},
       .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers}},
       .text_tokens = 300,
       .pixart_customs = true},
      {.name = "StableDiffusion3Pipeline",
       .transformers = {"SD3Transformer2DModel"},
       .encoders = {{"text_encoder", "tokenizer", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens},
                    {"text_encoder_3", "tokenizer_3", kT5, kT5Tokenizers, TextUse::states, 0,
                     true}},
       .text_tokens = 256},
      {.name = "FluxPipeline",
       .transformers = {"FluxTransformer2DModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"CLIPTextModel"},
                     kClipTokenizers,
                     TextUse::pooled,
                     kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kT5, kT5Tokenizers, TextUse::states}},
       .text_tokens = 512,
       .even_sigmas = true},
      {.name = "HunyuanDiTPipeline",
       .transformers = {"HunyuanDiT2DModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"BertModel"},
                     kBertTokenizers,
                     TextUse::padded_states,
                     kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kT5, kMultilingualTokenizers,
                     TextUse::padded_states}},
       .text_tokens = 256,
       .rescales_guidance = true},
      {.name = "WanPipeline",
       .transformers = {"WanTransformer3DModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"UMT5EncoderModel"},
                     kT5Tokenizers,
                     TextUse::zeroed_states}},
       .text_tokens = 512,
       .mends_prompts = true,
       .vae = "AutoencoderKLWan"},
      {.name = "StableDiffusionPipeline",
       .transformers = {"UNet2DConditionModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"CLIPTextModel"},
                     kClipTokenizers,
                     TextUse::states,
                     kClipTokens}},
       .network = "unet",
       .text_tokens = kClipTokens,
       .rescales_guidance = true},
      {.name = "StableDiffusionXLPipeline",
       .transformers = {"UNet2DConditionModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"CLIPTextModel"},
                     kClipTokenizers,
                     TextUse::penultimate_pooled,
                     kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens}},
       .network = "unet",
       .text_tokens = kClipTokens,
       .rescales_guidance = true},
  };
  return all;
}

}  // namespace

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

const Pipeline& pipeline_of(const std::string& name, const std::filesystem::path& index_file) {
  std::vector<std::string> names;
  for (const Pipeline& pipeline : pipelines()) {
    if (pipeline.name == name) return pipeline;
    names.push_back(pipeline.name);
  }
  throw std::runtime_error("[read_model] " + index_file.string() + ": pipeline class \"" + name +
                           "\" is not supported (supported: " + joined(names) + ")");
}

}  // namespace troupe::spec
