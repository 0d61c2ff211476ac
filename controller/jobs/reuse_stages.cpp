#include "controller/jobs/reuse_stages.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "controller/plan/degrees.h"
#include "controller/plan/groups.h"
#include "controller/plan/memory.h"
#include "controller/plan/planner.h"

namespace troupe::jobs {
namespace {

/// Ratio of times beyond which the model is rather loaded anew than computed with by such stages.
constexpr double kWorthLoading = 1.25;

/// Stages that stand somewhere, with the groups between them.
struct Split {
  std::vector<plan::Stage> stages;
  std::vector<plan::GroupPlan> groups;
};

std::vector<Split> loaded_splits(const plan::Plan& plan, const cluster::Model& model,
                                 const LoadedStages& settled) {
  std::vector<Split> splits;
  std::set<std::uint64_t> seen;
  for (const auto& [id, actor] : settled.members.all()) {
    for (const auto& one : settled.deployments.at(id)) {
      if (one->model == model && one->dtype == plan.request.dtype &&
          one->weight_dtype == plan.request.weight_dtype && one->offload == plan.request.offload &&
          one->degrees == plan.degrees && !settled.deployments.is_drained(*one) &&
          seen.insert(one->id).second)
        splits.push_back({one->stages, one->groups});
    }
  }
  return splits;
}

std::vector<Split> planned_splits(const plan::Plan& plan, const cluster::Model& model,
                                  const LoadedStages& settled) {
  std::vector<Split> splits;
  for (const auto& [id, job] : settled.table.all()) {
    const auto& other = job.plan;
    if (!has_ended(job.state) && !other.stages.empty() && other.degrees == plan.degrees &&
        other.request.dtype == plan.request.dtype &&
        other.request.weight_dtype == plan.request.weight_dtype &&
        other.request.offload == plan.request.offload &&
        model_of(job.spec.model, job.fingerprint, other) == model)
      splits.push_back({other.stages, other.groups});
  }
  return splits;
}

}  // namespace

cluster::Model model_of(const std::string& folder, std::uint64_t fingerprint,
                        const plan::Plan& plan) {
  cluster::Model model{folder, fingerprint};
  const auto& loras = plan.request.loras;
  const auto& known = plan.lora_fingerprints;
  for (std::size_t i = 0; i < loras.size(); ++i)
    model.loras.push_back({loras[i], i < known.size() ? known[i] : 0});
  return model;
}

void reuse_stages(plan::Plan& plan, const std::string& folder, std::uint64_t fingerprint,
                  const spec::ModelSpec& model, const plan::Machine& machine,
                  const LoadedStages& settled) {
  if (plan.degrees.pp == 1) return;
  const auto own = model_of(folder, fingerprint, plan);
  // Stages say which groups a plan has: who decodes must agree, too.
  const auto fitting = [&](const std::vector<Split>& splits) {
    std::vector<plan::Plan> plans;
    for (const auto& split : splits) {
      auto same = plan;
      same.stages = split.stages;
      same.groups.clear();
      plan::set_groups(same, model);
      if (same.groups == split.groups) plans.push_back(std::move(same));
    }
    return plans;
  };
  auto others = fitting(loaded_splits(plan, own, settled));
  if (others.empty()) others = fitting(planned_splits(plan, own, settled));
  if (std::ranges::find(others, plan.stages, &plan::Plan::stages) != others.end()) return;
  const auto seconds = [&](const plan::Plan& other) {
    const auto mix = plan::parallelism_of(other.degrees, other.vae_degree);
    return plan::judge(mix, other, model, machine).cost.total();
  };
  const double most = seconds(plan) * kWorthLoading;
  for (auto& same : others) {
    same.memory = plan::estimate_memory(same, model);
    if (settled.deployments.shortage(same) || seconds(same) > most) continue;
    plan = std::move(same);
    return;
  }
}

}  // namespace troupe::jobs
