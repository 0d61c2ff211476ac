#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/quantized.h"
#include "models/dit/ports.h"

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

  /// First of `count` items that this part has; `end` returns the one after its last.
  int64_t begin(int64_t count) const {
    return count / degree * rank + std::min<int64_t>(rank, count % degree);
  }
  int64_t end(int64_t count) const { return WeightShard{rank + 1, degree}.begin(count); }
  int64_t size(int64_t count) const { return end(count) - begin(count); }
};

/// Layers that a stage holds: some blocks, perhaps the embeddings of patches and text, perhaps the
/// last modulation and projection.
struct StagePart {
  BlockRange blocks;
  bool embeds = true;
  bool projects = true;
  WeightShard shard = {};
  bool of_second = false;  ///< true for the second of a model's two transformers
};

/// Rows and columns of the whole picture's latents. A video is a tall picture: its latent frames
/// stand one below the other, and latent_height counts the rows of them all.
struct PictureSize {
  int64_t latent_height = 0;
  int64_t latent_width = 0;
  int64_t frames = 1;
  /// Latent frames at the beginning that a job is given: they stay as they are, and their tokens
  /// see timestep 0.
  int64_t given_frames = 0;

  /// Returns the latent rows of the frames that are given.
  int64_t given_rows() const { return latent_height / frames * given_frames; }
};

/// Returns the tokens of a picture whose tokens are `patch` latent pixels a side.
inline int64_t picture_tokens(PictureSize size, int64_t patch) {
  return size.latent_height / patch * (size.latent_width / patch);
}

/// Rows [begin, end) of the token grid, which has latent_height / patch_size rows.
struct TokenRows {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Tokens that a call computes: in joint models first the text tokens [text_begin, text_end), whose
/// last ones are those of pictures to edit, then the picture's tokens of `rows` in order. They pass
/// through `blocks`, or through all blocks of the stage if none are named.
struct CallTokens {
  PictureSize size;
  std::vector<TokenRows> rows;
  int64_t text_begin = 0;
  int64_t text_end = 0;
  std::optional<BlockRange> blocks = {};

  int64_t text() const { return text_end - text_begin; }
  /// Returns how many of them are among the first `count` of the text's tokens.
  int64_t text_before(int64_t count) const {
    return std::min(text_end, count) - std::min(text_begin, count);
  }
};

/// Output of one text encoder; its tensors are undefined if the folder lacks the encoder.
struct EncoderOutput {
  at::Tensor states;   ///< [B, L, d]
  at::Tensor lengths;  ///< [B] int64 on the CPU: number of tokens that are not padding
  at::Tensor pooled;   ///< [B, p]
  int64_t tokens = 0;  ///< number of tokens that prompts were padded or cut to
};

/// Text as it is sent to all actors.
struct Caption {
  at::Tensor states;  ///< [B, L, W]
  at::Tensor pooled;  ///< [B, P]; undefined where a family has none
  /// Latents of the pictures to edit, [1, C, h, w] each, as a sampler takes latents.
  std::vector<at::Tensor> references = {};
  /// States of a vision tower of the frames that a video is given, [1, T, d]; undefined where a
  /// model has none.
  at::Tensor seen = {};
};

/// Inputs that condition a step beside the text.
struct StepInput {
  double timestep = 0;  ///< value that the sampler gives to the model
  double guidance = 0;  ///< guidance scale, for models that take it as an input
  PictureSize size;
};

/// Values that depend on the timestep, the picture's size and the pooled text, for every block.
class StepCondition {
 public:
  virtual ~StepCondition() = default;
  /// Returns the tensors that differ from step to step, in an order that depends on the model
  /// alone.
  virtual std::vector<at::Tensor> tensors() const = 0;
  /// Takes over the values of `fresh`, another step of the same text and size, into the same
  /// memory, so that what was recorded on a device reads the new values.
  void take(const StepCondition& fresh);
};

/// Values that depend on the caption only: keys and values of the stage's cross attentions, or the
/// text's tokens as they enter the first block.
class CaptionCache {
 public:
  virtual ~CaptionCache() = default;
  /// Returns the values of batch items [begin, end), which share this cache's memory.
  virtual std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const = 0;
  virtual int64_t batch() const = 0;
  virtual int64_t bytes() const = 0;
};

/// A stage of a diffusion transformer: weights and arithmetic, independent of processes. Methods
/// are const and may be called from one thread at a time per instance. Throws std::logic_error
/// where the stage does not hold what a method needs, std::invalid_argument where shapes disagree.
class DiffusionTransformer {
 public:
  virtual ~DiffusionTransformer() = default;

  virtual const StagePart& part() const = 0;
  /// Number of latent rows, and of latent columns, of a token.
  virtual int64_t patch_size() const = 0;
  virtual int64_t hidden_width() const = 0;
  /// Width of the values that a token brings from earlier stages (`input_width`) or takes to later
  /// ones (`output_width`): the token's hidden states first, then the states that the nearest of
  /// these stages leaves or takes up.
  virtual int64_t input_width() const { return hidden_width(); }
  virtual int64_t output_width() const { return hidden_width(); }
  /// Slots that this stage's blocks name to the AttentionPort.
  virtual BlockRange attentions() const { return part().blocks; }
  /// Attention heads of this part's shard; may be 0.
  virtual int64_t heads() const = 0;
  virtual int64_t head_dim() const = 0;
  virtual at::ScalarType dtype() const = 0;
  /// Bytes of this stage's weights.
  virtual int64_t bytes() const = 0;

  /// Projects the text encoders' outputs, which are in the order of the folder's encoders. SD3 also
  /// takes a single output that joins all of them, as its pipeline does. Needs `embeds`.
  virtual Caption project_caption(const std::vector<EncoderOutput>& text) const = 0;
  /// mask [B, L] (true: attend to it). Once per job.
  virtual std::unique_ptr<CaptionCache> cache_caption(const Caption& caption,
                                                      const at::Tensor& mask) const = 0;
  virtual std::unique_ptr<StepCondition> condition(const StepInput& input,
                                                   const CaptionCache& caption) const = 0;
  /// latents [B, C, rows · patch_size, latent_width] of the token rows, with the channels that
  /// stand beside them where the model has some → hidden [B, tokens, D]. Needs `embeds`.
  virtual at::Tensor embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const = 0;
  /// Text tokens [begin, end) of a joint model as its first block takes them, [B, tokens, D]. Needs
  /// `embeds`.
  virtual at::Tensor embed_text(const CaptionCache& caption, int64_t begin, int64_t end) const;
  /// The call's blocks in order, hidden [B, tokens, input_width] → [B, tokens, output_width], or
  /// the widths at the edges of the blocks that the call names; tokens may be 0; shards of the same
  /// blocks are given the same hidden states and return the same. Works in place where hidden is
  /// contiguous.
  virtual at::Tensor run_blocks(at::Tensor hidden, const CallTokens& tokens,
                                const StepCondition& condition, const CaptionCache& caption,
                                AttentionPort& attention, TensorParallelPort& sums) const = 0;
  /// Returns a signal that tells, before any block is computed, how much a step differs from
  /// another: the picture's tokens as block 0 normalizes and modulates them by the timestep, [B,
  /// tokens, D], or [B, d] if the signal does not depend on tokens. `hidden` is as run_blocks takes
  /// it. Needs block 0. Source: TeaCache (Liu et al.).
  virtual at::Tensor step_signal(const at::Tensor& hidden, const CallTokens& tokens,
                                 const StepCondition& condition) const = 0;
  /// hidden of the picture's tokens → prediction [B, C, rows · patch_size, latent_width]; a learned
  /// variance is not computed. Needs `projects`.
  virtual at::Tensor project(const at::Tensor& hidden, const StepCondition& condition,
                             PictureSize size, TokenRows rows) const = 0;
};

class LoraWeights;

/// Blocks of a stage that are in the device's memory: all, or only the block that is computed and
/// the next one, which BlockStream reads meanwhile from the files, or from copies in the host's
/// memory that are laid out as they are computed with.
enum class KeepBlocks { all, from_files, from_host };

/// Reads only the weights of `part`; `tick` is called before each tensor, and an exception that it
/// throws ends the reading. The additions of `loras`, restricted to the part's rows and columns,
/// are contained in the weights. Products of tokens keep their weights as `type` says, quantized
/// after that addition. Each streamed block is read once to check that it can be read; the stage
/// needs `loras` as long as it lives then. Throws std::invalid_argument for blocks that the model
/// does not have, std::runtime_error for weights that are missing, misshapen or not finite, and for
/// a type that the device has no products for.
std::unique_ptr<DiffusionTransformer> load_transformer(
    const spec::ModelSpec& spec, const StagePart& part, at::ScalarType compute, at::Device device,
    const std::function<void()>& tick = {}, const LoraWeights* loras = nullptr,
    kernels::WeightType type = {}, KeepBlocks keep = KeepBlocks::all);

}  // namespace troupe::models
