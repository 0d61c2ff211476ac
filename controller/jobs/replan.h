#pragma once
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "controller/jobs/job_table.h"
#include "controller/plan/machine.h"
#include "controller/plan/plan.h"
#include "controller/plan/planner.h"

namespace troupe::jobs {

/// Memory of the actors that a plan is made for.
struct Roominess {
  /// Bytes, least first, and the number of actors that may hold at least so much
  /// (Members::memory_steps).
  std::vector<std::pair<std::uint64_t, int>> steps;
  std::function<bool(const plan::Plan&)> fits;  // on these actors as they are
};

/// Returns the degrees that `--parallel auto` stands for on at most so many actors of different
/// memory: what all of them may hold is tried as the limit first, then what the larger ones may.
/// Where no plan fits, the one that needs least. Throws std::invalid_argument where there is none.
/// Pure.
wire::Parallelism automatic_within(const spec::ModelSpec& model, const wire::ImageRequest& request,
                                   int actors, const plan::Machine& machine, const Roominess& room);

/// Plans the job's request on the degrees that suit at most so many actors best, with the steps
/// that it has to fill anew by now. Degrees alone differ from the plan that it has. Throws as
/// `automatic_within` does. Pure.
plan::Plan plan_again(const JobEntry& job, const spec::ModelSpec& model, int actors,
                      const plan::Machine& machine, const Roominess& room);

/// Puts down from which step on a stale method fills its K,V store anew when it goes on with
/// `next`, so that the picture can be made again. Predicted K,V need two steps of history: where
/// only the last warm-up step is left, it is the step after it. Step caches begin empty at such a
/// step, also those of exact plans; nothing for an exact plan without one, nor for naive patches,
/// which keep nothing.
void add_refill(plan::Plan& plan, int next);

}  // namespace troupe::jobs
