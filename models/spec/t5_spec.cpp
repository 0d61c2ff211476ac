#include "models/spec/t5_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"

namespace troupe::spec {
namespace {

constexpr std::int64_t kMaxT5Width = 1 << 17;
constexpr std::int64_t kMaxVocabulary = 1 << 22;

void accept_unused_t5_keys(const ConfigReader& config) {
  config.harmless({"architectures",
                   "model_type",
                   "torch_dtype",
                   "dtype",
                   "transformers_version",
                   "dropout_rate",
                   "classifier_dropout",
                   "initializer_factor",
                   "num_decoder_layers",
                   "n_positions",
                   "output_past",
                   "use_cache",
                   "task_specific_params",
                   "tie_word_embeddings",
                   "scale_decoder_outputs",
                   "is_encoder_decoder",
                   "decoder_start_token_id",
                   "pad_token_id",
                   "eos_token_id",
                   "bos_token_id",
                   "gradient_checkpointing",
                   "output_attentions",
                   "output_hidden_states",
                   "return_dict",
                   "chunk_size_feed_forward",
                   "id2label",
                   "label2id",
                   "problem_type",
                   "name_or_path",
                   "use_bfloat16",
                   "torchscript"});
}

}  // namespace

T5Spec read_t5_spec(const ConfigReader& config) {
  T5Spec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxT5Width);
  };
  const auto type = config.choice_or("model_type", "t5", {"t5", "mt5", "umt5"});
  spec.bias_in_every_block = type == "umt5";
  // Said of UMT5 only, and read by nothing in transformers.
  config.harmless({"scalable_attention", "tokenizer_class"});
  spec.vocab_size = config.integer_or("vocab_size", spec.vocab_size, 1, kMaxVocabulary);
  spec.d_model = size("d_model", spec.d_model);
  spec.d_kv = size("d_kv", spec.d_kv);
  spec.d_ff = size("d_ff", spec.d_ff);
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 1, kMaxBlocks);
  spec.num_heads = size("num_heads", spec.num_heads);
  spec.relative_attention_num_buckets = config.integer_or("relative_attention_num_buckets", 32, 4);
  spec.relative_attention_max_distance =
      config.integer_or("relative_attention_max_distance", 128, 2);
  spec.layer_norm_epsilon = config.number_or("layer_norm_epsilon", spec.layer_norm_epsilon);

  const auto projection = config.choice_or("feed_forward_proj", "relu", {"relu", "gated-gelu"});
  spec.gated_gelu = projection == "gated-gelu";
  config.only("dense_act_fn", spec.gated_gelu ? "gelu_new" : "relu");
  config.only("is_gated_act", spec.gated_gelu);
  config.only("is_decoder", false);
  accept_unused_t5_keys(config);
  config.finish();

  if (!(spec.layer_norm_epsilon > 0 && spec.layer_norm_epsilon < 1)) {
    config.refuse("layer_norm_epsilon", "must be between 0 and 1");
  }
  if (spec.relative_attention_num_buckets % 4 != 0) {
    config.refuse("relative_attention_num_buckets", "must be a multiple of 4");
  }
  if (spec.relative_attention_max_distance <= spec.relative_attention_num_buckets / 4) {
    config.refuse("relative_attention_max_distance",
                  "must exceed a quarter of relative_attention_num_buckets");
  }
  return spec;
}

std::string t5_block_prefix(std::int64_t block) {
  return fmt::format("encoder.block.{}.", block);
}

bool is_ignorable_t5_tensor(std::string_view name) {
  return name == "shared.weight" || name == "encoder.embed_tokens.weight" ||
         name == "lm_head.weight" || name.starts_with("decoder.");
}

std::vector<ExpectedTensor> expected_tensors(const T5Spec& spec) {
  const std::int64_t width = spec.d_model;
  const std::int64_t inner = spec.num_heads * spec.d_kv;
  std::vector<ExpectedTensor> list;
  list.push_back({"shared.weight", {spec.vocab_size, width}, {"encoder.embed_tokens.weight"}});
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const std::string attention = t5_block_prefix(block) + "layer.0.";
    const std::string dense = t5_block_prefix(block) + "layer.1.";
    for (const std::string name : {"q", "k", "v"}) {
      list.push_back({attention + "SelfAttention." + name + ".weight", {inner, width}});
    }
    list.push_back({attention + "SelfAttention.o.weight", {width, inner}});
    if (block == 0 || spec.bias_in_every_block) {
      list.push_back({attention + "SelfAttention.relative_attention_bias.weight",
                      {spec.relative_attention_num_buckets, spec.num_heads}});
    }
    list.push_back({attention + "layer_norm.weight", {width}});
    if (spec.gated_gelu) {
      list.push_back({dense + "DenseReluDense.wi_0.weight", {spec.d_ff, width}});
      list.push_back({dense + "DenseReluDense.wi_1.weight", {spec.d_ff, width}});
    } else {
      list.push_back({dense + "DenseReluDense.wi.weight", {spec.d_ff, width}});
    }
    list.push_back({dense + "DenseReluDense.wo.weight", {width, spec.d_ff}});
    list.push_back({dense + "layer_norm.weight", {width}});
  }
  list.push_back({"encoder.final_layer_norm.weight", {width}});
  return list;
}

}  // namespace troupe::spec
