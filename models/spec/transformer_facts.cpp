#include "models/spec/transformer_facts.h"

namespace troupe::spec {

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
