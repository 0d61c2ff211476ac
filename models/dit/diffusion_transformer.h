#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>

#include "models/dit/attention_port.h"
#include "models/dit/tensor_parallel_port.h"

namespace troupe::spec {
struct ModelSpec;
}

namespace troupe::models {

/// Blocks [begin, end) of the whole model.
struct BlockRange {
  int begin = 0;
  int end = 0;
};

/// Part `rank` of `degree` of every block's heads and feed-forward columns, remainders first.
struct WeightShard {
  int rank = 0;
  int degree = 1;

  /// Where this part of `count` items begins and ends.
  int64_t begin(int64_t count) const {
    return count / degree * rank + std::min<int64_t>(rank, count % degree);
  }
  int64_t end(int64_t count) const { return WeightShard{rank + 1, degree}.begin(count); }
  int64_t size(int64_t count) const { return end(count) - begin(count); }
};

/// What a stage holds: some blocks, perhaps the patch embedding with the caption projection,
/// perhaps the last modulation and projection.
struct StagePart {
  BlockRange blocks;
  bool embeds = true;
  bool projects = true;
  WeightShard shard = {};
};

/// Rows and columns of the whole picture's latents.
struct PictureSize {
  int64_t latent_height = 0;
  int64_t latent_width = 0;
};

/// Rows [begin, end) of the token grid, which has latent_height / patch_size rows.
struct TokenRows {
  int64_t begin = 0;
  int64_t end = 0;
};

/// What depends on the timestep and the picture's size, for every block.
class StepCondition {
 public:
  virtual ~StepCondition() = default;
};

/// What depends on the caption only: keys and values of the stage's cross attentions.
class CaptionCache {
 public:
  virtual ~CaptionCache() = default;
  /// Of batch items [begin, end) only; shares the memory.
  virtual std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const = 0;
  virtual int64_t bytes() const = 0;
};

/// A stage of a diffusion transformer: weights and arithmetic, no word of processes. Methods are
/// const and may be called from one thread at a time per instance. Throws std::logic_error where
/// the stage does not hold what a method needs, std::invalid_argument where shapes disagree.
class DiffusionTransformer {
 public:
  virtual ~DiffusionTransformer() = default;

  virtual const StagePart& part() const = 0;
  /// Latent rows, and columns, of a token.
  virtual int64_t patch_size() const = 0;
  virtual int64_t hidden_width() const = 0;
  /// Attention heads of this part's shard; may be 0.
  virtual int64_t heads() const = 0;
  virtual int64_t head_dim() const = 0;
  virtual at::ScalarType dtype() const = 0;
  /// Bytes of this stage's weights.
  virtual int64_t bytes() const = 0;

  /// Text states [B, L, caption_channels] → [B, L, D]. Needs `embeds`.
  virtual at::Tensor project_caption(const at::Tensor& states) const = 0;
  /// projected [B, L, D], mask [B, L] (true: attend to it). Once per job.
  virtual std::unique_ptr<CaptionCache> cache_caption(const at::Tensor& projected,
                                                      const at::Tensor& mask) const = 0;
  /// timestep as the sampler gives it to the model.
  virtual std::unique_ptr<StepCondition> condition(double timestep, int64_t batch,
                                                   PictureSize size) const = 0;
  /// latents [B, C, rows · patch_size, latent_width] of the token rows → hidden [B, tokens, D].
  /// Needs `embeds`.
  virtual at::Tensor embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const = 0;
  /// The stage's blocks in order, hidden [B, tokens, D] → the same shape, tokens may be 0; shards
  /// of the same blocks are given the same hidden states and return the same. Works in place where
  /// hidden is contiguous.
  virtual at::Tensor run_blocks(at::Tensor hidden, const StepCondition& condition,
                                const CaptionCache& caption, AttentionPort& attention,
                                TensorParallelPort& sums) const = 0;
  /// hidden → prediction [B, C, rows · patch_size, latent_width]; a learned variance is not
  /// computed. Needs `projects`.
  virtual at::Tensor project(const at::Tensor& hidden, const StepCondition& condition,
                             PictureSize size, TokenRows rows) const = 0;
};

/// Reads only the weights of `part`; `tick` is called before each tensor, and what it throws ends
/// the reading. Throws std::invalid_argument for blocks that the model does not have,
/// std::runtime_error for weights that are missing, misshapen or not finite.
std::unique_ptr<DiffusionTransformer> load_transformer(const spec::ModelSpec& spec,
                                                       const StagePart& part,
                                                       at::ScalarType compute, at::Device device,
                                                       const std::function<void()>& tick = {});

}  // namespace troupe::models
