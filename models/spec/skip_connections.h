#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace troupe::spec {

/// Returns the number of hidden states that blocks [first, last) leave and blocks
/// [later_first, later_last) take up again; skip_from as in TransformerFacts.
inline std::int64_t count_skip_connections(const std::vector<int>& skip_from, std::int64_t first,
                                           std::int64_t last, std::int64_t later_first,
                                           std::int64_t later_last) {
  const auto end = std::min<std::int64_t>(later_last, std::ssize(skip_from));
  std::int64_t states = 0;
  for (std::int64_t block = later_first; block < end; ++block)
    states += first <= skip_from[block] && skip_from[block] < last ? 1 : 0;
  return states;
}

}  // namespace troupe::spec
