#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"
#include "models/dit/diffusion_transformer.h"

namespace troupe::models {

/// Tokens [begin, end) of the picture.
struct TokenRun {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const TokenRun&) const = default;
};
using TokenRuns = std::vector<TokenRun>;

int64_t count_of(const TokenRuns& runs);
/// Returns what of `run` is not in `hole`: up to two runs, none of them empty.
TokenRuns without(TokenRun run, TokenRun hole);

/// Keys and values of all tokens of the picture, kept per block from step to step, for patches that
/// attend to more than is computed in their own call. Rows that were never computed are absent.
/// Sources: PipeFusion (Fang et al.), DistriFusion (Li et al.); extrapolation: the README.md beside
/// this file.
class KvStore {
 public:
  /// Version of the rows that a call reads but does not compute itself.
  enum class Freshness {
    newest,       ///< PipeFusion: this step's where they exist
    step_before,  ///< DistriFusion: the previous step's, also where this step's exist
  };
  struct Shape {
    BlockRange blocks;
    int64_t batch = 0;
    int64_t tokens = 0;  ///< number of tokens of the whole picture
    int64_t heads = 0;   ///< number of heads that this process attends with; may be 0
    int64_t head_dim = 0;
    Freshness freshness = Freshness::newest;
    bool predicts = false;  ///< rows that are not fresh are extrapolated from their last two values
    /// Number of tokens at the beginning, of frames that are given, that do not count for the
    /// extrapolation's sums: where they do not move, the sums would be rounding alone.
    int64_t given = 0;
  };

  /// Allocates 1 (newest) or 2 (step_before) versions of 2 · blocks · batch · tokens · heads ·
  /// head_dim elements, and one more where it predicts. Throws std::invalid_argument for impossible
  /// sizes.
  KvStore(const Shape& shape, at::ScalarType dtype, at::Device device);

  /// Stores the keys and values that step `step` computed for `runs`: kv
  /// [tokens of the runs, b, 2, H, d], any strides, of batch items [first_item, first_item + b).
  /// With `fits`, the rows count for the extrapolation's sums of this block, these items and this
  /// step. Rows of the tokens `padding` are left out, and so remain absent.
  void put(int block, int step, const TokenRuns& runs, const at::Tensor& kv, bool fits,
           int64_t first_item = 0, TokenRun padding = {});

  /// Forgets all keys and values, so that the store is empty again.
  void forget();

  /// Returns the host's bookkeeping of these blocks, as seen from `step`: how old their rows are,
  /// and which step the sums belong to. If two histories are equal, the same puts and choices in
  /// steps that are as far on do the same work on the same memory, and lead to equal histories
  /// again.
  std::string history(BlockRange blocks, int step) const;
  /// Sets the bookkeeping of these blocks to a result of `history`. The caller is responsible for
  /// the values: a replayed recording has written them.
  void set_history(BlockRange blocks, int step, const std::string& of);

  /// Returns sums [B, 2, 2] float64 of the rows put with `fits`: of this step so far (newest), or
  /// of the last put (step_before). The caller adds up the sums of all ranks that hold other heads
  /// or rows.
  const at::Tensor& sums(int block) const { return blocks_[slot(block)].sums; }

  /// Tokens beside `fresh` that a call of `step` may attend to, in order, each run with its
  /// version. They are chosen for batch item `item` and hold for other items of the same history.
  struct Choice {
    TokenRun run;
    int version = 0;
    bool extrapolated = false;
  };
  std::vector<Choice> choose(int block, int step, const TokenRuns& fresh, int64_t item = 0) const;
  /// Returns whether any of the choices is to be extrapolated.
  static bool needs_factors(const std::vector<Choice>& choices);

  /// Batch items [begin, end).
  struct Items {
    int64_t begin = 0;
    int64_t end = 0;
  };
  /// Returns the keys and values of the choices, for all batch items or for `items`; `factors`
  /// [items, 2] is needed if a choice is extrapolated.
  std::vector<kernels::KeyValueRun> runs(int block, const std::vector<Choice>& choices,
                                         const at::Tensor& factors,
                                         std::optional<Items> items = {}) const;

  const Shape& shape() const { return shape_; }
  /// Returns a copy of the newest keys and values that were ever computed of a block, for
  /// inspection: [B, tokens known, 2, H, d].
  at::Tensor newest(int block) const;
  int64_t bytes() const { return static_cast<int64_t>(values_.nbytes()); }

 private:
  static constexpr int kNever = std::numeric_limits<int>::min();
  /// State of a token: the step of its newest value, and how many versions hold values.
  struct Age {
    int step = kNever;
    int known = 0;
    bool operator==(const Age&) const = default;
  };
  struct Block {
    std::vector<std::vector<Age>> ages;  // by batch item and token
    at::Tensor sums;
    std::vector<int> sums_step;  // by batch item; kNever: none
  };

  size_t slot(int block) const;
  void put_run(size_t slot, int64_t item, int step, TokenRun run, const at::Tensor& kv, bool fits);
  /// Returns [B, tokens of the run, 2, H, d].
  at::Tensor rows(size_t slot, int version, TokenRun run) const;

  Shape shape_;
  int versions_;
  at::Tensor values_;  // [blocks, versions, B, tokens, 2, H, d]
  std::vector<Block> blocks_;
};

}  // namespace troupe::models
