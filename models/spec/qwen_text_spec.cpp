#include "models/spec/qwen_text_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/encoder_sizes.h"

namespace troupe::spec {
namespace {

constexpr std::string_view kQwenRoot = "model.";
/// Beginning of the names of a Qwen3-VL's language model, behind the root if that is there.
constexpr std::string_view kLanguageModel = "language_model.";

/// Reads the base of the rotary positions, which newer configs keep in an object of its own.
/// `sections` may say how three coordinates share a head's channels.
double read_rope_theta(const ConfigReader& config, double fallback, bool sections) {
  config.harmless({"rope_theta", "rope_scaling", "rope_parameters"});
  double theta = config.number_or("rope_theta", fallback);
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    if (!config.has_value(object)) continue;
    const auto& given = config.raw(object);
    if (!given.is_object()) config.refuse(object, "must be an object");
    for (const auto& [key, value] : given.items()) {
      const bool known = (key == "rope_theta" && value.is_number()) ||
                         ((key == "rope_type" || key == "type") &&
                          (value == "default" || (sections && value == "mrope"))) ||
                         (sections && (key == "mrope_section" || key == "mrope_interleaved"));
      if (!known) config.refuse(object, "has \"" + key + "\", which is not supported");
    }
    theta = given.value("rope_theta", theta);
  }
  if (!(theta > 1)) config.refuse("rope_theta", "must be above 1");
  return theta;
}

void accept_unused_qwen_keys(const ConfigReader& config) {
  config.harmless({"architectures",
                   "attention_dropout",
                   "bos_token_id",
                   "chunk_size_feed_forward",
                   "dtype",
                   "eos_token_id",
                   "id2label",
                   "initializer_range",
                   "is_encoder_decoder",
                   "label2id",
                   "max_position_embeddings",
                   "max_window_layers",
                   "model_type",
                   "name_or_path",
                   "output_attentions",
                   "output_hidden_states",
                   "pad_token_id",
                   "problem_type",
                   "return_dict",
                   "sliding_window",
                   "tie_word_embeddings",
                   "torch_dtype",
                   "transformers_version",
                   "use_cache"});
}

/// Reads what all Qwen models' configs have in common; `spec` has the defaults. `sections` as in
/// read_rope_theta.
QwenTextSpec read_qwen(const ConfigReader& config, QwenTextSpec spec, bool sections) {
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxEncoderWidth);
  };
  spec.vocab_size = config.integer_or("vocab_size", spec.vocab_size, 1, kMaxEncoderVocabulary);
  spec.hidden_size = size("hidden_size", spec.hidden_size);
  spec.intermediate_size = size("intermediate_size", spec.intermediate_size);
  spec.num_hidden_layers =
      config.integer_or("num_hidden_layers", spec.num_hidden_layers, 1, kMaxBlocks);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.num_key_value_heads = size("num_key_value_heads", spec.num_attention_heads);
  // Qwen3 has a head size of its own.
  spec.head_dim =
      size("head_dim", spec.qk_norm ? spec.head_dim : spec.hidden_size / spec.num_attention_heads);
  spec.rms_norm_eps = config.number_or("rms_norm_eps", spec.rms_norm_eps);
  spec.rope_theta = read_rope_theta(config, spec.rope_theta, sections);
  config.only("hidden_act", "silu");
  config.only("use_sliding_window", false);
  if (config.has_value("layer_types")) {
    for (const auto& type : config.texts("layer_types"))
      if (type != "full_attention") config.refuse("layer_types", "has layers of type " + type);
  }
  config.harmless({"layer_types"});
  accept_unused_qwen_keys(config);
  config.finish();
  if (!(spec.rms_norm_eps > 0 && spec.rms_norm_eps < 1))
    config.refuse("rms_norm_eps", "must be between 0 and 1");
  if (spec.head_dim < 2 || spec.head_dim % 2 != 0) config.refuse("head_dim", "must be even");
  if (spec.num_attention_heads % spec.num_key_value_heads != 0) {
    config.refuse("num_key_value_heads",
                  fmt::format("must divide num_attention_heads, {}", spec.num_attention_heads));
  }
  return spec;
}

/// Reads the text's half of the config of a model that sees pictures, `type` by its model_type:
/// `text_config` or, in older ones, what stands beside the vision's.
QwenTextSpec read_qwen_vl(const ConfigReader& config, const std::string& type,
                          const QwenTextSpec& defaults) {
  const auto accept_tokens = [](const ConfigReader& of) {
    of.harmless({"image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id",
                 "vision_token_id"});
  };
  config.only("model_type", type);
  config.harmless({"vision_config"});
  accept_tokens(config);
  if (!config.has_value("text_config")) return read_qwen(config, defaults, true);
  const ConfigReader text(config.raw("text_config").dump(), config.file());
  text.only("model_type", type + "_text");
  if (!defaults.qkv_bias) text.only("attention_bias", false);
  accept_tokens(text);
  const QwenTextSpec spec = read_qwen(text, defaults, true);
  // What the text's own settings say again stands here for older readers.
  accept_unused_qwen_keys(config);
  config.harmless({"hidden_act", "hidden_size", "intermediate_size", "layer_types",
                   "num_attention_heads", "num_hidden_layers", "num_key_value_heads",
                   "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
                   "use_sliding_window", "vocab_size"});
  config.finish();
  return spec;
}

}  // namespace

QwenTextSpec read_qwen3_spec(const ConfigReader& config) {
  config.only("model_type", "qwen3");
  config.only("attention_bias", false);
  return read_qwen(config, {}, false);
}

QwenTextSpec read_qwen2_5_vl_spec(const ConfigReader& config) {
  return read_qwen_vl(
      config, "qwen2_5_vl",
      {.rms_norm_eps = 1e-5, .rope_theta = 1e6, .qk_norm = false, .qkv_bias = true});
}

QwenTextSpec read_qwen3_vl_spec(const ConfigReader& config) {
  if (!config.has_value("text_config")) config.refuse("text_config", "must be an object");
  return read_qwen_vl(config, "qwen3_vl", {.rope_theta = 500000});
}

QwenTextSpec read_qwen_spec(const std::string& class_name, const ConfigReader& config) {
  return class_name.starts_with("Qwen3VL") ? read_qwen3_vl_spec(config)
         : class_name.starts_with("Qwen3") ? read_qwen3_spec(config)
                                           : read_qwen2_5_vl_spec(config);
}

std::string qwen_block_prefix(std::int64_t block) {
  return fmt::format("{}layers.{}.", kQwenRoot, block);
}

std::vector<std::string> other_qwen_names(const std::string& name) {
  const std::string own = name.substr(kQwenRoot.size());
  const std::string in_language_model = std::string(kLanguageModel) + own;
  return {own, in_language_model, std::string(kQwenRoot) + in_language_model};
}

std::vector<ExpectedTensor> expected_tensors(const QwenTextSpec& spec) {
  const std::int64_t width = spec.hidden_size, wide = spec.intermediate_size;
  const std::int64_t queries = spec.num_attention_heads * spec.head_dim;
  const std::int64_t keys = spec.num_key_value_heads * spec.head_dim;
  std::vector<ExpectedTensor> list;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    list.push_back({name, std::move(shape), other_qwen_names(name)});
  };
  add(std::string(kQwenRoot) + "embed_tokens.weight", {spec.vocab_size, width});
  for (std::int64_t block = 0; block < spec.used_layers(); ++block) {
    const std::string prefix = qwen_block_prefix(block), attention = prefix + "self_attn.";
    const std::pair<const char*, std::int64_t> products[] = {
        {"q_proj", queries}, {"k_proj", keys}, {"v_proj", keys}};
    for (const auto& [name, outputs] : products) {
      add(attention + name + ".weight", {outputs, width});
      if (spec.qkv_bias) add(attention + name + ".bias", {outputs});
    }
    add(attention + "o_proj.weight", {width, queries});
    if (spec.qk_norm) {
      add(attention + "q_norm.weight", {spec.head_dim});
      add(attention + "k_norm.weight", {spec.head_dim});
    }
    add(prefix + "mlp.gate_proj.weight", {wide, width});
    add(prefix + "mlp.up_proj.weight", {wide, width});
    add(prefix + "mlp.down_proj.weight", {width, wide});
    add(prefix + "input_layernorm.weight", {width});
    add(prefix + "post_attention_layernorm.weight", {width});
  }
  if (spec.taken_layers.empty()) add(std::string(kQwenRoot) + "norm.weight", {width});
  if (spec.vision) std::ranges::move(expected_tensors(*spec.vision), std::back_inserter(list));
  return list;
}

bool is_qwen_vision_tensor(std::string_view name) {
  if (name.starts_with(kQwenRoot)) name.remove_prefix(kQwenRoot.size());
  return name.starts_with("visual.");
}

bool is_ignorable_qwen_tensor(const QwenTextSpec& spec, std::string_view name) {
  if (name == "lm_head.weight" || (!spec.vision && is_qwen_vision_tensor(name))) return true;
  if (name.starts_with(kQwenRoot)) name.remove_prefix(kQwenRoot.size());
  if (name.starts_with(kLanguageModel)) name.remove_prefix(kLanguageModel.size());
  if (spec.taken_layers.empty()) return false;
  if (name == "norm.weight") return true;
  for (std::int64_t layer = spec.used_layers(); layer < spec.num_hidden_layers; ++layer)
    if (name.starts_with(fmt::format("layers.{}.", layer))) return true;
  return false;
}

}  // namespace troupe::spec
