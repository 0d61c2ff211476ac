#include "controller/jobs/refill.h"

#include <algorithm>

namespace troupe::jobs {

void add_refill(plan::Plan& plan, int next) {
  auto& request = plan.request;
  if (request.exchange == PatchExchange::naive) return;  // nothing is kept from step to step
  // A step cache begins anew; without one an exact plan has nothing to fill.
  const bool exact = request.method == Method::exact;
  if (exact && request.step_cache == StepCacheRule::none) return;
  const int warm = exact ? 1 : plan.synchronous_steps;
  int step = next;
  if (request.kv == KvUse::predict && next + 1 == warm) step = warm;
  if (step < warm || step >= request.steps) return;
  auto& refills = request.refill_steps;
  if (std::binary_search(refills.begin(), refills.end(), step)) return;
  refills.push_back(step);
  std::sort(refills.begin(), refills.end());
}

}  // namespace troupe::jobs
