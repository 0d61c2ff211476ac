#pragma once
#include "controller/plan/plan.h"

namespace troupe::jobs {

/// Puts down from which step on a stale method fills its K,V store anew when it goes on with
/// `next`, so that the picture can be made again. Predicted K,V need two steps of history: where
/// only the last warm-up step is left, it is the step after it. Step caches begin empty at such a
/// step, also those of exact plans; nothing for an exact plan without one, nor for naive patches,
/// which keep nothing.
void add_refill(plan::Plan& plan, int next);

}  // namespace troupe::jobs
