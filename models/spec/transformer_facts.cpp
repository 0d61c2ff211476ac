#include "models/spec/transformer_facts.h"

namespace troupe::spec {

bool divides_head(const std::vector<std::int64_t>& axes, std::int64_t head_dim) {
  std::int64_t sum = 0;
  for (const auto width : axes) {
    if (width <= 0 || width > head_dim || width % 2 != 0) return false;
    sum += width;
  }
  return axes.size() == 3 && sum == head_dim;
}

TextShare text_share(std::int64_t tokens, int micro_step, SequencePlace place, bool distrifusion) {
  if (micro_step > 0) return {};
  const bool first_ring = micro_step == 0 && distrifusion;
  const std::int64_t ranks = first_ring ? place.ulysses : place.ring * place.ulysses;
  if (place.rank >= ranks) return {};
  const auto begin = [&](std::int64_t rank) {
    return tokens / ranks * rank + std::min(rank, tokens % ranks);
  };
  return {begin(place.rank), begin(place.rank + 1)};
}

}  // namespace troupe::spec
