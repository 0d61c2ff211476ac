#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "models/encoders/encoder_weights.h"
#include "models/safetensors.h"
#include "models/spec/t5_spec.h"
#include "models/text/tokenizer.h"

namespace troupe::models {

/// Token ids and their attention mask, both [B, L] int64 on the CPU.
struct TextBatch {
  at::Tensor ids;
  at::Tensor mask;
};

TextBatch text_batch(const Tokenized& tokenized);

/// The encoder half of T5 v1.0 and v1.1, and of UMT5. A call reads the embedding rows it needs,
/// then one block at a time, converted to the compute dtype if it differs and dropped before the
/// next, so that at most two blocks are resident and none between calls; unless its weights stay.
/// Source: T5EncoderModel and UMT5EncoderModel of transformers.
class T5Encoder {
 public:
  /// Throws std::runtime_error if a tensor is missing or misshapen. `dtype` is float32, bfloat16 or
  /// float16; scores, softmax and norms are computed in float32 in any case.
  T5Encoder(const spec::T5Spec& spec, WeightStore weights, at::ScalarType dtype = at::kFloat,
            at::Device device = at::kCPU);

  /// Makes the weights that a call has read stay in memory for the next call, as
  /// EncoderWeights::stay.
  void let_stay() { weights_.stay(); }
  std::uint64_t bytes() const { return weights_.bytes(); }

  /// Called after every block with the number done.
  using Progress = std::function<void(int done, int total)>;

  /// States [B, L, d_model] of `dtype` on the device, for ids [B, L] int64 and a mask [B, L] that
  /// is not zero where a token may be attended to (undefined: everywhere). The caller turns
  /// gradients off. Throws std::invalid_argument for an id that the vocabulary lacks,
  /// std::runtime_error for a weight that is not finite.
  at::Tensor encode(const at::Tensor& ids, const at::Tensor& mask,
                    const Progress& progress = {}) const;
  /// Returns the states of each batch by itself, so that none depends on the others; every block is
  /// read once for all batches.
  std::vector<at::Tensor> encode_each(const std::vector<TextBatch>& texts,
                                      const Progress& progress = {}) const;

 private:
  const at::Tensor& weight(const std::string& name) const { return weights_.get(name); }
  at::Tensor embed(const at::Tensor& ids) const;
  /// [1, H, L, L] float32 of a block's table, masked out where `hidden` [B, 1, 1, L] is set.
  at::Tensor position_bias(int block, std::int64_t length, const at::Tensor& hidden) const;
  at::Tensor norm(const at::Tensor& states, const at::Tensor& scale) const;
  at::Tensor attend(const at::Tensor& states, const std::string& prefix,
                    const at::Tensor& bias) const;
  at::Tensor feed_forward(const at::Tensor& states, const std::string& prefix) const;

  spec::T5Spec spec_;
  mutable EncoderWeights weights_;
  at::ScalarType dtype_;
  at::Device device_;
  std::string embedding_;
};

/// Bucket of each distance key - query, as T5's bidirectional attention counts them.
/// `distances` is int64 of any shape.
at::Tensor relative_position_bucket(const at::Tensor& distances, std::int64_t buckets,
                                    std::int64_t max_distance);

}  // namespace troupe::models
