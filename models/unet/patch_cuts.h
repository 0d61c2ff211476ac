#pragma once
#include <cstdint>
#include <vector>

#include "models/vae/halo_port.h"

namespace troupe::models::unet {

/// Rows that each patch has at every level of a U-Net. At level 0, the latents, rows are divided
/// evenly, remainders first. Level l + 1 is half as high, rounded up, and a patch has those of its
/// rows that lie on an even row of its own at level l: so a convolution needs one row beyond either
/// end of a patch at the same level, whichever way it goes. Patches may have no row at deeper
/// levels.
class PatchCuts {
 public:
  /// Throws std::invalid_argument where a patch would have no row of latents.
  PatchCuts(std::int64_t height, int patches, int levels);

  int patches() const { return patches_; }
  int levels() const { return static_cast<int>(levels_.size()); }
  std::int64_t height(int level) const { return levels_.at(level).back(); }
  RowRun rows(int level, int patch) const {
    return {levels_.at(level).at(patch), levels_.at(level).at(patch + 1)};
  }

 private:
  int patches_;
  std::vector<std::vector<std::int64_t>> levels_;  // where patches begin, and the height
};

/// Length of the next level.
inline std::int64_t halved(std::int64_t length) {
  return (length + 1) / 2;
}

}  // namespace troupe::models::unet
