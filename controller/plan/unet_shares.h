#pragma once
#include <cstdint>
#include <vector>

#include "controller/plan/plan.h"
#include "models/spec/unet_spec.h"

namespace troupe::plan {

/// Rows of a U-Net's patches at each level, and the bytes that each layer tells of a patch.
class UNetShares {
 public:
  using Bytes = std::uint64_t;

  UNetShares(const Plan& plan, const spec::UNetSpec& unet);

  /// Returns the layers that tell something of a patch, in model order.
  const std::vector<spec::UNetSite>& sites() const { return sites_; }
  int patches() const { return static_cast<int>(plan_.patches.size()); }
  /// Returns the bytes that a layer tells of one patch and a batch.
  Bytes bytes(const spec::UNetSite& site, int patch, Bytes batch) const;

 private:
  const Plan& plan_;
  std::vector<spec::UNetSite> sites_;
  std::vector<std::vector<std::int64_t>> begins_;  // by level
  std::vector<std::int64_t> widths_;
};

/// Returns the bytes of an element as the request computes.
std::uint64_t element_size(const Plan& plan);

/// Returns the bytes with what lies behind them in a buffer of shares.
std::uint64_t aligned(std::uint64_t bytes);

/// Returns the patches of a sequence rank.
wire::RowRange patches_of(const Plan& plan, int sequence_rank);

}  // namespace troupe::plan
