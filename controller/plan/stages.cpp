#include "controller/plan/stages.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/layout.h"
#include "controller/plan/request_rules.h"

namespace troupe::plan {
namespace {

/// Ratio of costs to the best split's up to which an even split is taken.
constexpr double kAsGoodAsBest = 1.02;

std::vector<Stage> even_split(int blocks, int stages) {
  std::vector<Stage> result;
  for (const auto& run : split_evenly(blocks, stages))
    result.push_back({run.begin, run.end});
  return result;
}

double costliest(const std::vector<double>& costs, const std::vector<Stage>& stages) {
  double most = 0;
  for (const auto& stage : stages) {
    most = std::max(most, std::accumulate(costs.begin() + stage.first_block,
                                          costs.begin() + stage.last_block, 0.0));
  }
  return most;
}

/// Returns whether blocks fit into `stages` stages of at most `limit` each, every stage with at
/// least one block; fills greedily, so earlier stages are as large as the limit allows.
bool fill(const std::vector<double>& costs, int stages, double limit, std::vector<Stage>* result) {
  result->clear();
  const int blocks = static_cast<int>(costs.size());
  int first = 0;
  for (int stage = 0; stage < stages; ++stage) {
    const int must_leave = stages - stage - 1;
    double cost = 0;
    int last = first;
    while (last < blocks - must_leave && (last == first || cost + costs[last] <= limit)) {
      cost += costs[last];
      ++last;
    }
    if (cost > limit) return false;
    result->push_back({first, last});
    first = last;
  }
  return first == blocks;
}

/// Returns the cheapest possible costliest stage, by dynamic programming over (stages, blocks).
double best_limit(const std::vector<double>& costs, int stages) {
  const int blocks = static_cast<int>(costs.size());
  std::vector<double> before(blocks + 1, 0);
  for (int i = 0; i < blocks; ++i)
    before[i + 1] = before[i] + costs[i];
  std::vector<double> best(before.begin(), before.end());
  for (int stage = 2; stage <= stages; ++stage) {
    std::vector<double> next(blocks + 1, std::numeric_limits<double>::infinity());
    for (int end = stage; end <= blocks; ++end) {
      for (int cut = stage - 1; cut < end; ++cut) {
        next[end] = std::min(next[end], std::max(best[cut], before[end] - before[cut]));
      }
    }
    best = std::move(next);
  }
  return best[blocks];
}

}  // namespace

std::vector<Stage> split_blocks(const std::vector<double>& costs, int stages) {
  const int blocks = static_cast<int>(costs.size());
  if (stages < 1 || stages > blocks) {
    refuse(JobField::pp, fmt::format("`pp` is {}, but the transformer has {}: each stage needs one",
                                     stages, counted(blocks, "block")));
  }
  const double best = best_limit(costs, stages);
  auto result = even_split(blocks, stages);
  if (costliest(costs, result) <= best * kAsGoodAsBest) return result;
  // A hair of slack, so that sums in another order still fit.
  if (!fill(costs, stages, best * (1 + 1e-12), &result)) {
    throw std::logic_error(
        fmt::format("[plan] no split of {} blocks into {} stages", blocks, stages));
  }
  return result;
}

std::vector<Stage> listed_stages(const std::vector<int>& sizes, int blocks) {
  std::vector<Stage> result;
  int first = 0;
  for (const int size : sizes) {
    if (size < 1 || size > blocks) {
      refuse(JobField::stages, fmt::format("`stages` has a stage of {}: the transformer has {}",
                                           counted(size, "block"), blocks));
    }
    result.push_back({first, first + size});
    first += size;
  }
  if (first != blocks) {
    refuse(JobField::stages, fmt::format("`stages` add up to {}, but the transformer has {}",
                                         counted(first, "block"), blocks));
  }
  return result;
}

}  // namespace troupe::plan
