#include "models/unet/patch_cuts.h"

namespace troupe::models::unet {

PatchCuts::PatchCuts(std::int64_t height, int patches, int levels) : patches_(patches) {
  const RowShards shards(height, patches);
  std::vector<std::int64_t> cuts = {0};
  for (int p = 0; p < patches; ++p)
    cuts.push_back(shards.of(p).end);
  for (int level = 0; level < levels; ++level) {
    levels_.push_back(cuts);
    for (std::int64_t& cut : cuts)
      cut = halved(cut);
  }
}

}  // namespace troupe::models::unet
