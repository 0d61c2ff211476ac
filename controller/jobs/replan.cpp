#include "controller/jobs/replan.h"

#include <algorithm>
#include <stdexcept>

#include "base/text.h"
#include "controller/jobs/job_table.h"
#include "controller/plan/planner.h"

namespace troupe::jobs {

namespace {

/// Limits closer than this are tried as one: each costs dozens of plans.
constexpr std::uint64_t kStep = 16;

}  // namespace

wire::Parallelism automatic_within(const spec::ModelSpec& model, const wire::ImageRequest& request,
                                   int actors, const plan::Machine& machine,
                                   const Roominess& room) {
  std::uint64_t tried = 0;
  plan::Limits limits;
  for (const auto& step : room.steps) {
    const auto& [bytes, count] = step;
    if (tried > 0 && bytes - tried < tried / kStep && &step != &room.steps.back()) continue;
    tried = limits.memory = bytes;
    const auto candidates =
        plan::choose_degrees(model, request, std::min(actors, count), machine, limits);
    const auto* best = plan::best_of(candidates);
    if (best && room.fits(plan::make_plan(model, request, best->parallelism, machine)))
      return best->parallelism;
  }
  const auto all = plan::choose_degrees(model, request, actors, machine, limits);
  const auto least = std::min_element(
      all.begin(), all.end(), [](const auto& a, const auto& b) { return a.memory < b.memory; });
  if (least == all.end()) {
    throw std::invalid_argument("[planner] no mix of degrees on up to " + counted(actors, "actor") +
                                " suits this request");
  }
  return least->parallelism;
}

plan::Plan plan_again(const JobEntry& job, const spec::ModelSpec& model, int actors,
                      const plan::Machine& machine, const Roominess& room) {
  const auto& before = job.plan;
  // As it was handed in: what a plan fills in depends on the degrees.
  auto request = job.spec.request;
  request.refill_steps = before.request.refill_steps;
  const auto own = input_blobs(request);
  const auto kept = input_blobs(before.request);
  for (std::size_t i = 0; i < own.size(); ++i)
    *own[i].id = *kept[i].id;
  auto plan = plan::make_plan(model, request,
                              automatic_within(model, request, actors, machine, room), machine);
  plan.lora_fingerprints = before.lora_fingerprints;
  plan.controlnet_fingerprints = before.controlnet_fingerprints;
  return plan;
}

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
