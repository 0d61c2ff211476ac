#include "controller/app/cluster_planner.h"

#include <stdexcept>

#include "controller/deployments/device_kinds.h"
#include "controller/jobs/batching.h"
#include "controller/jobs/replan.h"
#include "controller/jobs/reuse_stages.h"

namespace troupe::cluster {
namespace {

const spec::ModelSpec& model_of(const jobs::JobEntry& job) {
  if (!job.model) throw std::invalid_argument("[cluster] the job's model is not known any more");
  return *job.model;
}

}  // namespace

plan::Machine ClusterPlanner::machine(WeightChoice weight_dtype) const {
  return figures_.machine(members_, commonest_kind(members_, weight_dtype, device_));
}

plan::Machine ClusterPlanner::least_machine() const {
  auto known = machine(WeightChoice::as_computed);
  const auto least = members_.memory_steps().front().first;
  if (least > 0) known.device.memory = least;
  return known;
}

plan::Plan ClusterPlanner::plan_again(const jobs::JobEntry& job, int actors) const {
  const auto& model = model_of(job);
  const auto known = machine(job.spec.request.weight_dtype);
  const auto fits = [this](const plan::Plan& plan) { return !deployments_.shortage(plan); };
  auto plan = jobs::plan_again(job, model, actors, known, {members_.memory_steps(), fits});
  jobs::reuse_stages(plan, job.spec.model, job.fingerprint, model, known,
                     {members_, deployments_, table_});
  return plan;
}

plan::Plan ClusterPlanner::plan_batch(const jobs::JobEntry& first,
                                      const wire::ImageRequest& request) {
  return plan::make_plan(model_of(first), request, jobs::parallelism_of(first));
}

}  // namespace troupe::cluster
