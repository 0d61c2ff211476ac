#pragma once
#include "controller/plan/cost_model.h"
#include "controller/plan/layout.h"
#include "controller/plan/link_cost.h"
#include "controller/plan/machine.h"
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Seconds of one block in one micro-step at the costliest rank.
struct BlockTime {
  double computing = 0;
  double transferring = 0;  // exposed
  double hidden = 0;        // DistriFusion's exchange, which may lie under the whole wave
};

/// Batch items and token rows of one micro-step. Rows: of the costliest rank, of its ring block, of
/// all ranks.
struct MicroRows {
  double batch = 1;  // items that go together: images × branches, or a part of them
  double own = 0;
  double block = 0;
  double all = 0;
  bool patched = false;
  bool with_text = false;  // joint models: the text's tokens go along
  bool predicts = false;

  bool operator==(const MicroRows&) const = default;
};

/// Costs of a block by what it computes; made once for a mesh.
class BlockCost {
 public:
  BlockCost(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
            const Machine& machine, const Engine& engine, const LinkCosts& link_costs);

  BlockTime operator()(const MicroRows& rows) const;
  /// Seconds of the matrix products of `tokens` of all items with `weights` elements.
  double products(double tokens, double weights) const;
  /// Seconds in which one block comes from the host's memory; 0 where it is kept.
  double copied() const;
  /// Seconds of so many FLOPs that write `elements`.
  double plain(double flops, double elements) const;
  double element() const { return element_; }

 private:
  double computed(double flops, double elements, double bytes, double speed) const;
  double block_products(double tokens) const;
  double attention(double batch, double queries, double keys, double width) const;
  /// Seconds of a block's attentions over the picture.
  double attentions(double batch, double queries, double keys) const;
  double text_attentions(double tokens) const;
  /// Seconds in which a GPU reads and writes between the products.
  double elementwise(double tokens) const;
  double exposed_transfers(double tokens) const;
  /// Number of collectives in a block.
  double calls(bool patched) const;
  double ring_transfer(double batch, double block_tokens) const;

  const ModelShape& model_;
  const JobShape& job_;
  const mesh::Degrees& degrees_;
  const Machine& machine_;
  const Engine& engine_;
  const LinkCosts& link_costs_;
  double element_ = 4;        // bytes
  double weight_ = 4;         // bytes of a product's weight
  double product_speed_ = 0;  // FLOPs a second of products with these weights
  double padding_ = 1;        // width of heads as attention computes it ÷ their own
  double head_share_ = 1;     // share of all heads that the costliest rank attends with
};

/// Number of items and pictures in one part of a job, so that the part takes about a second at most
/// where single items allow it: a part that has begun is not left for another job's sake, nor,
/// where peers wait in a collective, for a cancel's. A power of two, so that speeds that were
/// measured a little otherwise give the same parts.
struct PartSizes {
  int items = 0;     // batch items of a step of the whole picture; at least 2: a picture's branches
  int pictures = 0;  // that are decoded; at least 1
};

/// Returns the sizes for a plan with stages and patches, by its largest stage and the machine's
/// speed; all at once where the speed is not known. A U-Net takes its items together.
PartSizes part_sizes(const Plan& plan, const spec::ModelSpec& model, const Machine& machine);

}  // namespace troupe::plan
