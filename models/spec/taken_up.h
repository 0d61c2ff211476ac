#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace troupe::spec {

/// Returns the number of hidden states that blocks [first, last) leave and blocks
/// [later_first, later_last) take up again; takes_up as in TransformerFacts.
inline std::int64_t states_taken_up(const std::vector<int>& takes_up, std::int64_t first,
                                    std::int64_t last, std::int64_t later_first,
                                    std::int64_t later_last) {
  const auto end = std::min<std::int64_t>(later_last, std::ssize(takes_up));
  std::int64_t states = 0;
  for (std::int64_t block = later_first; block < end; ++block)
    states += first <= takes_up[block] && takes_up[block] < last ? 1 : 0;
  return states;
}

}  // namespace troupe::spec
