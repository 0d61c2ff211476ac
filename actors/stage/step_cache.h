#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/stage/network.h"
#include "actors/stage/skip_rule.h"

namespace troupe::actors {

/// Leaves the blocks of a stage out in steps that change little, and adds what they added last. The
/// first stage decides for each batch item and patch; the decisions go with the hidden states from
/// stage to stage. All ranks of a stage take the same ones, from one sum over all of them.
///
/// Under distrifusion each rank of a ring has a patch of its own: a *column* of the decisions.
/// Under the other methods there is one column. Where some columns compute a batch item and others
/// do not, the ranks of these go through the blocks without tokens, for what they exchange.
class StepCache {
 public:
  struct Shape {
    models::BlockRange blocks;  // of this stage
    std::int64_t items = 0;     // batch items of this actor
    std::int64_t width = 0;     // of the hidden states that blocks add to
    std::int64_t edge = 0;      // of all that goes to the next stage
    bool watches_block = true;  // the first block's output, or else the step signal
    bool patched = false;       // steps of the whole picture are never left out
    bool tells_apart = false;   // items are alike only where all their decisions were
    int columns = 1;
    int own_column = 0;
    std::vector<std::int64_t> tokens;     // own tokens of the picture, by micro-step
    std::vector<std::vector<bool>> busy;  // by micro-step and column: there are rows to compute
  };
  /// Flags of the columns that compute.
  using Columns = std::vector<bool>;
  /// Calls of the network that the cache makes.
  struct Calls {
    /// Runs some blocks for some batch items; hidden is unused if the own column does not compute,
    /// and then nothing is returned.
    std::function<at::Tensor(const NetworkStep&, at::Tensor hidden, wire::RowRange items,
                             models::BlockRange blocks, const Columns&)>
        run;
    std::function<at::Tensor(const NetworkStep&, const at::Tensor& hidden)> signal;
    /// Sums the values, float64, over all ranks of the stage; the host reads the sums next.
    std::function<void(at::Tensor&)> sum;
  };

  StepCache(Shape shape, SkipRule rule, Calls calls);

  /// Runs hidden [items, text + tokens, edge] through the stage. The text's tokens come first.
  at::Tensor run(const NetworkStep& step, at::Tensor hidden, std::int64_t text);

  std::int64_t note_size(const NetworkStep& step) const;
  void take_note(const NetworkStep& step, const at::Tensor& note);
  at::Tensor note(const NetworkStep& step, at::Device device) const;

  std::int64_t bytes() const;
  const CacheUse& use() const { return use_; }

 private:
  bool first_stage() const { return shape_.blocks.begin == 0; }
  /// Returns whether the step is computed without asking, which every rank knows.
  bool is_forced(const NetworkStep& step) const {
    return step.refill || (shape_.patched && step.place.patch < 0);
  }
  /// Returns the micro-steps [begin, end) that the step takes at once.
  wire::RowRange micro_steps(const NetworkStep& step) const;
  bool is_busy(const NetworkStep& step, int column) const;
  /// Returns the own tokens of the picture [first, second) in the micro-steps.
  std::pair<std::int64_t, std::int64_t> own_tokens(const NetworkStep& step) const;
  at::Tensor picture(const at::Tensor& hidden, std::int64_t text) const {
    return hidden.slice(1, text).slice(2, 0, shape_.width);
  }

  void compute_all(const NetworkStep& step);
  /// Decides which items compute; given [items, own tokens, d], or [items, d] if it does not depend
  /// on tokens.
  void decide(const NetworkStep& step, const at::Tensor& given);
  at::Tensor changes(const NetworkStep& step, const at::Tensor& watched);
  void keep_watched(const NetworkStep& step, const at::Tensor& watched, bool by_token);
  void count(const NetworkStep& step);
  /// Items from `first` on, counted from the step's first, that the blocks can take at once: the
  /// same columns compute, and so did they before as far as K,V tell.
  std::int64_t alike_until(const NetworkStep& step, std::int64_t first) const;
  at::Tensor run_items(const NetworkStep& step, const at::Tensor& hidden, wire::RowRange items,
                       models::BlockRange blocks, std::int64_t text);
  at::Tensor leave_out(const at::Tensor& hidden, const at::Tensor& residual,
                       std::int64_t text) const;

  Shape shape_;
  SkipRule rule_;
  Calls calls_;
  std::vector<Columns> computing_;      // by batch item of the step that is running
  std::vector<std::string> histories_;  // by batch item: decisions that tell items apart
  int history_step_ = -1;
  std::vector<at::Tensor> watched_;  // by micro-step: [items, n, d] that calls are compared with
  at::Tensor residual_;              // [items, own tokens, width]: what the blocks added last
  CacheUse use_;
};

}  // namespace troupe::actors
