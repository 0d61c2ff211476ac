#include "controller/jobs/replan.h"

#include "controller/plan/planner.h"

namespace troupe::jobs {

plan::Plan plan_again(const JobEntry& job, const spec::ModelSpec& model, int actors,
                      const plan::Machine& machine, const plan::Limits& limits) {
  const auto& before = job.plan;
  // As it was handed in: what a plan fills in depends on the degrees.
  auto request = job.spec.request;
  request.refill_steps = before.request.refill_steps;
  request.init_latents_blob = before.request.init_latents_blob;
  request.init_image_blob = before.request.init_image_blob;
  auto plan = plan::make_plan(model, request,
                              plan::automatic_parallelism(model, request, actors, machine, limits));
  plan.lora_fingerprints = before.lora_fingerprints;
  return plan;
}

}  // namespace troupe::jobs
