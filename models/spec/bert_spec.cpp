#include "models/spec/bert_spec.h"

namespace troupe::spec {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 16;
constexpr std::int64_t kMaxVocabulary = 1 << 22;
constexpr std::int64_t kMaxBlocks = 1024;

}  // namespace

BertSpec read_bert_spec(const ConfigReader& config) {
  BertSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  config.only("model_type", "bert");
  spec.vocab_size = config.integer_or("vocab_size", spec.vocab_size, 1, kMaxVocabulary);
  spec.hidden_size = size("hidden_size", spec.hidden_size);
  spec.intermediate_size = size("intermediate_size", spec.intermediate_size);
  spec.num_hidden_layers =
      config.integer_or("num_hidden_layers", spec.num_hidden_layers, 1, kMaxBlocks);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.max_position_embeddings = size("max_position_embeddings", spec.max_position_embeddings);
  spec.type_vocab_size = size("type_vocab_size", spec.type_vocab_size);
  spec.layer_norm_eps = config.number_or("layer_norm_eps", spec.layer_norm_eps);
  config.only("hidden_act", "gelu");
  config.only("position_embedding_type", "absolute");
  config.only("is_decoder", false);
  config.only("add_cross_attention", false);
  config.harmless({"architectures",
                   "attention_probs_dropout_prob",
                   "hidden_dropout_prob",
                   "classifier_dropout",
                   "initializer_range",
                   "gradient_checkpointing",
                   "directionality",
                   "output_past",
                   "pooler_fc_size",
                   "pooler_num_attention_heads",
                   "pooler_num_fc_layers",
                   "pooler_size_per_head",
                   "pooler_type",
                   "use_cache",
                   "bos_token_id",
                   "eos_token_id",
                   "pad_token_id",
                   "torch_dtype",
                   "dtype",
                   "transformers_version",
                   "tie_word_embeddings",
                   "model_type"});
  config.finish();
  if (!(spec.layer_norm_eps > 0 && spec.layer_norm_eps < 1)) {
    config.refuse("layer_norm_eps", "must be between 0 and 1");
  }
  if (spec.hidden_size % spec.num_attention_heads != 0) {
    config.refuse("hidden_size", "must be a multiple of num_attention_heads, " +
                                     std::to_string(spec.num_attention_heads));
  }
  return spec;
}

std::string bert_block_prefix(std::int64_t block) {
  return "encoder.layer." + std::to_string(block) + ".";
}

bool is_ignorable_bert_tensor(std::string_view name) {
  return name.ends_with("embeddings.position_ids") || name.starts_with("cls.") ||
         name.starts_with("pooler.") || name.starts_with("bert.pooler.");
}

std::vector<ExpectedTensor> expected_tensors(const BertSpec& spec) {
  const std::int64_t width = spec.hidden_size, wide = spec.intermediate_size;
  std::vector<ExpectedTensor> list;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    list.push_back({name, std::move(shape), {"bert." + name}});
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    add(name + ".weight", {out, in});
    add(name + ".bias", {out});
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {width});
    add(name + ".bias", {width});
  };
  add("embeddings.word_embeddings.weight", {spec.vocab_size, width});
  add("embeddings.position_embeddings.weight", {spec.max_position_embeddings, width});
  add("embeddings.token_type_embeddings.weight", {spec.type_vocab_size, width});
  norm("embeddings.LayerNorm");
  for (std::int64_t block = 0; block < spec.num_hidden_layers; ++block) {
    const std::string prefix = bert_block_prefix(block);
    for (const char* name : {"query", "key", "value"})
      linear(prefix + "attention.self." + name, width, width);
    linear(prefix + "attention.output.dense", width, width);
    norm(prefix + "attention.output.LayerNorm");
    linear(prefix + "intermediate.dense", width, wide);
    linear(prefix + "output.dense", wide, width);
    norm(prefix + "output.LayerNorm");
  }
  return list;
}

}  // namespace troupe::spec
