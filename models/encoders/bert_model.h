#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "models/encoders/encoder_weights.h"
#include "models/encoders/t5_encoder.h"
#include "models/safetensors.h"
#include "models/spec/bert_spec.h"

namespace troupe::models {

/// BERT's encoder, without its pooler. A call reads the embedding rows it needs, then one block at
/// a time, as T5Encoder does. Source: BertModel of transformers.
class BertModel {
 public:
  /// Throws std::runtime_error if a tensor is missing or misshapen.
  BertModel(const spec::BertSpec& spec, WeightStore weights, at::ScalarType dtype = at::kFloat,
            at::Device device = at::kCPU);

  /// Same as T5Encoder::let_stay.
  void let_stay() { weights_.stay(); }
  std::uint64_t bytes() const { return weights_.bytes(); }

  /// Called after every block with the number done.
  using Progress = std::function<void(int done, int total)>;

  /// States [B, L, hidden_size] for ids [B, L] int64 and a mask [B, L] that is not zero where a
  /// token may be attended to. Throws std::invalid_argument for an id that the vocabulary lacks and
  /// for more tokens than there are positions.
  at::Tensor encode(const at::Tensor& ids, const at::Tensor& mask,
                    const Progress& progress = {}) const;
  /// Returns the states of each batch by itself; every block is read once for all batches.
  std::vector<at::Tensor> encode_each(const std::vector<TextBatch>& texts,
                                      const Progress& progress = {}) const;

 private:
  std::string stored(const std::string& name) const;
  const at::Tensor& weight(const std::string& name) const { return weights_.get(stored(name)); }
  at::Tensor embed(const at::Tensor& ids) const;
  at::Tensor linear(const at::Tensor& states, const std::string& name) const;
  at::Tensor norm(const at::Tensor& states, const std::string& name) const;
  at::Tensor attend(const at::Tensor& states, const std::string& prefix,
                    const at::Tensor& seen) const;

  spec::BertSpec spec_;
  mutable EncoderWeights weights_;
  at::Device device_;
};

}  // namespace troupe::models
