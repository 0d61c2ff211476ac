#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/dit/attention_port.h"
#include "models/dit/diffusion_transformer.h"

namespace troupe::models {

/// PipeFusion's attention: the keys and values of every token of the picture are kept per block,
/// the call's tokens overwrite theirs, and all tokens seen so far are attended to. So patch m of a
/// step sees fresh keys and values of patches ≤ m and the previous step's of patches > m; a call
/// with all tokens is a synchronous step. Source: PipeFusion (Fang et al.); the rows that were
/// never computed are absent, not zero.
class StaleKvAttention : public AttentionPort {
 public:
  struct Shape {
    BlockRange blocks;
    int64_t batch = 0;
    int64_t tokens = 0;  ///< of the whole picture
    int64_t heads = 0;
    int64_t head_dim = 0;
  };

  /// Allocates 2 · blocks · batch · tokens · heads · head_dim elements. Throws
  /// std::invalid_argument for a size below one.
  StaleKvAttention(const Shape& shape, at::ScalarType dtype, at::Device device);

  /// The next calls are for tokens [begin, end). Throws std::invalid_argument if that is outside
  /// the picture, or if it begins behind the first token that was never written.
  void begin(int64_t begin, int64_t end);

  /// Throws std::invalid_argument if q, k or v have another shape than begin() announced or if the
  /// block is not one of this stage.
  at::Tensor attend(int block, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v) override;

  /// Forgets every row.
  void reset();

  /// Tokens [0, written(block)) have been written.
  int64_t written(int block) const;
  int64_t bytes() const;

 private:
  size_t slot(int block) const;

  Shape shape_;
  int64_t begin_ = 0;
  int64_t end_ = 0;
  at::Tensor keys_;    // [blocks, B, tokens, H, d]
  at::Tensor values_;  // the same
  std::vector<int64_t> written_;
};

}  // namespace troupe::models
