#include "models/spec/bert_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/encoder_sizes.h"

namespace troupe::spec {

BertSpec read_bert_spec(const ConfigReader& config) {
  BertSpec spec;
  config.only("model_type", "bert");
  read_encoder_sizes(config, spec);
  spec.type_vocab_size =
      config.integer_or("type_vocab_size", spec.type_vocab_size, 1, kMaxEncoderWidth);
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
  check_encoder_sizes(config, spec);
  return spec;
}

std::string bert_block_prefix(std::int64_t block) {
  return fmt::format("encoder.layer.{}.", block);
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
