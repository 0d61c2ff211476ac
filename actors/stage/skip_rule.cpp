#include "actors/stage/skip_rule.h"

#include <utility>

namespace troupe::actors {

SkipRule::SkipRule(double threshold, std::vector<double> polynomial, std::int64_t items,
                   std::int64_t patches)
    : threshold_(threshold),
      polynomial_(std::move(polynomial)),
      patches_(patches),
      histories_(static_cast<std::size_t>(items * patches)) {}

bool SkipRule::skips(std::int64_t item, std::int64_t patch, Change change) {
  History& history = at(item, patch);
  const double relative = change.difference / change.before;  // not a number: nothing is left out
  if (!adds_up()) return relative <= threshold_;
  double value = 0;
  for (const double factor : polynomial_)
    value = value * relative + factor;
  history.sum += value;
  if (history.sum < threshold_) return true;
  history.sum = 0;
  return false;
}

void SkipRule::computes(std::int64_t item, std::int64_t patch) {
  at(item, patch) = {.known = true, .sum = 0};
}

}  // namespace troupe::actors
