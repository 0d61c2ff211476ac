#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/stage/network.h"

namespace troupe::actors {

/// Decides which calls of a network a step cache leaves out. A call is a batch item's patch at a
/// step; each item and patch has a history of its own. The same calls make the same decisions:
/// there are no tensors, clocks or processes in here. Sources: first-block cache of ParaAttention
/// and diffusers; TeaCache (Liu et al.).
class SkipRule {
 public:
  /// Sums of absolute values over a call's signal: of its difference from the one that it is
  /// compared with, and of that one.
  struct Change {
    double difference = 0;
    double before = 0;
  };

  /// `polynomial`, highest power first: changes are added up through it until they reach the
  /// threshold (TeaCache). Empty: one change is compared with the threshold (first-block cache).
  SkipRule(double threshold, std::vector<double> polynomial, std::int64_t items,
           std::int64_t patches);

  /// Returns true if calls are compared with the call before, false if with the last one that was
  /// computed.
  bool adds_up() const { return !polynomial_.empty(); }
  /// Returns whether the call has something to be compared with.
  bool knows(std::int64_t item, std::int64_t patch) const { return at(item, patch).known; }
  /// Returns whether the call is left out; `knows` is true.
  bool skips(std::int64_t item, std::int64_t patch, Change change);
  /// Notes that the call is computed without asking.
  void computes(std::int64_t item, std::int64_t patch);

 private:
  struct History {
    bool known = false;
    double sum = 0;
  };
  const History& at(std::int64_t item, std::int64_t patch) const {
    return histories_.at(static_cast<std::size_t>(item * patches_ + patch));
  }
  History& at(std::int64_t item, std::int64_t patch) {
    return histories_.at(static_cast<std::size_t>(item * patches_ + patch));
  }

  double threshold_;
  std::vector<double> polynomial_;
  std::int64_t patches_;
  std::vector<History> histories_;
};

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
