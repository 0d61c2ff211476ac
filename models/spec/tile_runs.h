#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace troupe::spec {

/// Begin and end of the tiles that a side of `size` is coded in, as diffusers lays them: one every
/// three quarters of `tile`, the last ones cut off at the end.
inline std::vector<std::pair<std::int64_t, std::int64_t>> tile_runs(std::int64_t size,
                                                                    std::int64_t tile) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  for (std::int64_t begin = 0; begin < size; begin += tile * 3 / 4)
    runs.emplace_back(begin, std::min(size, begin + tile));
  return runs;
}

}  // namespace troupe::spec
