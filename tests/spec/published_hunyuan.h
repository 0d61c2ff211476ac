#pragma once

#include <cstdint>

#include "tests/spec/published_folder.h"
#include "tests/spec/published_unets.h"

// What else Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers and PixArt-alpha/PixArt-Sigma-XL-2-1024-MS
// have beside their transformers: the encoders chinese-roberta-wwm-ext-large and mT5-XL, SDXL's
// VAE.

namespace troupe::testing {

inline constexpr const char* kHunyuanModelIndex = R"({
  "_class_name": "HunyuanDiTPipeline", "_diffusers_version": "0.29.0.dev0",
  "feature_extractor": [null, null], "requires_safety_checker": true,
  "safety_checker": [null, null],
  "scheduler": ["diffusers", "DDPMScheduler"],
  "text_encoder": ["transformers", "BertModel"],
  "text_encoder_2": ["transformers", "T5EncoderModel"],
  "tokenizer": ["transformers", "BertTokenizer"],
  "tokenizer_2": ["transformers", "T5Tokenizer"],
  "transformer": ["diffusers", "HunyuanDiT2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline constexpr const char* kHunyuanScheduler = R"({
  "_class_name": "DDPMScheduler", "_diffusers_version": "0.29.0.dev0", "beta_end": 0.018,
  "beta_schedule": "scaled_linear", "beta_start": 0.00085, "clip_sample": false,
  "clip_sample_range": 1.0, "dynamic_thresholding_ratio": 0.995, "num_train_timesteps": 1000,
  "prediction_type": "v_prediction", "rescale_betas_zero_snr": false, "sample_max_value": 1.0,
  "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1, "thresholding": false,
  "timestep_spacing": "leading", "trained_betas": null, "variance_type": "fixed_small"})";

inline constexpr const char* kHunyuanBertConfig = R"({
  "_name_or_path": "hfl/chinese-roberta-wwm-ext-large", "architectures": ["BertModel"],
  "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "classifier_dropout": null,
  "directionality": "bidi", "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
  "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 4096,
  "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
  "num_attention_heads": 16, "num_hidden_layers": 24, "output_past": true, "pad_token_id": 0,
  "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
  "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
  "position_embedding_type": "absolute", "torch_dtype": "float32",
  "transformers_version": "4.22.1", "type_vocab_size": 2, "use_cache": true,
  "vocab_size": 47020})";

inline constexpr const char* kMt5XlConfig = R"({
  "architectures": ["T5EncoderModel"], "d_ff": 5120, "d_kv": 64, "d_model": 2048,
  "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
  "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": true,
  "layer_norm_epsilon": 1e-06, "model_type": "mt5", "num_decoder_layers": 24, "num_heads": 32,
  "num_layers": 24, "output_past": true, "pad_token_id": 0,
  "relative_attention_num_buckets": 32, "tie_word_embeddings": false,
  "tokenizer_class": "T5Tokenizer", "vocab_size": 250112})";

/// Numbers of elements that transformers has for the two: BertModel without its pooler,
/// T5EncoderModel.
inline constexpr std::uint64_t kHunyuanBertElements = 350'986'240;
inline constexpr std::uint64_t kMt5XlElements = 1'669'958'656;

inline constexpr const char* kHunyuanBertTokenizer = R"({
  "clean_up_tokenization_spaces": true, "cls_token": "[CLS]", "do_basic_tokenize": true,
  "do_lower_case": true, "mask_token": "[MASK]", "model_max_length": 512, "never_split": null,
  "pad_token": "[PAD]", "sep_token": "[SEP]", "strip_accents": null,
  "tokenize_chinese_chars": true, "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]",
  "added_tokens_decoder": {
    "0": {"content": "[PAD]", "lstrip": false, "normalized": false, "rstrip": false,
          "single_word": false, "special": true},
    "100": {"content": "[UNK]", "lstrip": false, "normalized": false, "rstrip": false,
            "single_word": false, "special": true},
    "101": {"content": "[CLS]", "lstrip": false, "normalized": false, "rstrip": false,
            "single_word": false, "special": true},
    "102": {"content": "[SEP]", "lstrip": false, "normalized": false, "rstrip": false,
            "single_word": false, "special": true},
    "103": {"content": "[MASK]", "lstrip": false, "normalized": false, "rstrip": false,
            "single_word": false, "special": true}}})";

inline constexpr const char* kMt5Tokenizer = R"({
  "additional_special_tokens": [], "clean_up_tokenization_spaces": true, "eos_token": "</s>",
  "extra_ids": 0, "legacy": true, "model_max_length": 1000000000000000019884624838656,
  "pad_token": "<pad>", "sp_model_kwargs": {}, "tokenizer_class": "T5Tokenizer",
  "unk_token": "<unk>",
  "added_tokens_decoder": {
    "0": {"content": "<pad>", "lstrip": false, "normalized": false, "rstrip": false,
          "single_word": false, "special": true},
    "1": {"content": "</s>", "lstrip": false, "normalized": false, "rstrip": false,
          "single_word": false, "special": true},
    "2": {"content": "<unk>", "lstrip": false, "normalized": false, "rstrip": false,
          "single_word": false, "special": true}}})";

inline constexpr const char* kSigmaModelIndex = R"({
  "_class_name": "PixArtSigmaPipeline", "_diffusers_version": "0.28.0.dev0",
  "scheduler": ["diffusers", "DPMSolverMultistepScheduler"],
  "text_encoder": ["transformers", "T5EncoderModel"],
  "tokenizer": ["transformers", "T5Tokenizer"],
  "transformer": ["diffusers", "Transformer2DModel"],
  "vae": ["diffusers", "AutoencoderKL"]})";

inline PublishedJointFolder published_hunyuan(const PublishedTransformer& transformer) {
  return {kHunyuanModelIndex,
          kHunyuanScheduler,
          transformer,
          {{"text_encoder", "tokenizer", kHunyuanBertConfig, false, false, kHunyuanBertTokenizer},
           {"text_encoder_2", "tokenizer_2", kMt5XlConfig, false, false, kMt5Tokenizer}},
          kKlVaeConfig};
}

inline PublishedJointFolder published_sigma() {
  return {kSigmaModelIndex,
          kPixArtScheduler,
          kPixArtSigmaConfig,
          {{"text_encoder", "tokenizer", kT5XxlConfig, false, false}},
          kKlVaeConfig};
}

}  // namespace troupe::testing
