#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"

namespace troupe::spec {

/// `config.json` of a BertModel. Defaults are transformers' own.
struct BertSpec {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t intermediate_size = 3072;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  double layer_norm_eps = 1e-12;

  bool operator==(const BertSpec&) const = default;
};

/// Refuses what is not supported by key and value.
BertSpec read_bert_spec(const ConfigReader& config);

/// Every tensor of the encoder, in transformers' names; "bert." stands before them in some
/// checkpoints.
std::vector<ExpectedTensor> expected_tensors(const BertSpec& spec);

/// Returns whether a tensor is ignored: counted positions, the pooler and heads of other tasks.
bool is_ignorable_bert_tensor(std::string_view name);

/// "encoder.layer.7."
std::string bert_block_prefix(std::int64_t block);

}  // namespace troupe::spec
