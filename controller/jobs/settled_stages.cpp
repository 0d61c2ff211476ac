#include "controller/jobs/settled_stages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "controller/plan/degrees.h"
#include "controller/plan/memory.h"
#include "controller/plan/planner.h"

namespace troupe::jobs {
namespace {

/// Beyond this the model is rather loaded anew than computed with by such stages.
constexpr double kWorthLoading = 1.25;

using Split = std::vector<plan::Stage>;

cluster::Model model_of(const std::string& folder, std::uint64_t fingerprint,
                        const plan::Plan& plan) {
  cluster::Model model{folder, fingerprint};
  const auto& loras = plan.request.loras;
  const auto& known = plan.lora_fingerprints;
  for (std::size_t i = 0; i < loras.size(); ++i)
    model.loras.push_back({loras[i], i < known.size() ? known[i] : 0});
  return model;
}

std::vector<Split> loaded_splits(const plan::Plan& plan, const cluster::Model& model,
                                 const Settled& settled) {
  std::vector<Split> splits;
  for (const auto& [id, actor] : settled.members.all()) {
    for (const auto& one : settled.deployments.at(id)) {
      if (one->model == model && one->dtype == plan.request.dtype &&
          one->weight_dtype == plan.request.weight_dtype && one->degrees == plan.degrees &&
          one->groups == plan.groups && !settled.deployments.is_drained(*one))
        splits.push_back(one->stages);
    }
  }
  return splits;
}

std::vector<Split> planned_splits(const plan::Plan& plan, const cluster::Model& model,
                                  const Settled& settled) {
  std::vector<Split> splits;
  for (const auto& [id, job] : settled.table.all()) {
    const auto& other = job.plan;
    if (!wire::is_terminal(job.state) && !other.stages.empty() && other.degrees == plan.degrees &&
        other.request.dtype == plan.request.dtype &&
        other.request.weight_dtype == plan.request.weight_dtype && other.groups == plan.groups &&
        model_of(job.spec.model, job.fingerprint, other) == model)
      splits.push_back(other.stages);
  }
  return splits;
}

}  // namespace

void settle_stages(plan::Plan& plan, const std::string& folder, std::uint64_t fingerprint,
                   const spec::ModelSpec& model, const plan::Machine& machine,
                   const Settled& settled) {
  if (plan.degrees.pp == 1) return;
  const auto own = model_of(folder, fingerprint, plan);
  auto splits = loaded_splits(plan, own, settled);
  if (splits.empty()) splits = planned_splits(plan, own, settled);
  if (splits.empty() || std::ranges::find(splits, plan.stages) != splits.end()) return;
  const auto seconds = [&](const plan::Plan& other) {
    const auto mix = plan::parallelism_of(other.degrees, other.vae_degree);
    return plan::judge(mix, other, model, machine).cost.total();
  };
  const double most = seconds(plan) * kWorthLoading;
  for (auto& split : splits) {
    auto same = plan;
    same.stages = std::move(split);
    same.memory = plan::estimate_memory(same, model);
    if (settled.deployments.shortage(same) || seconds(same) > most) continue;
    plan = std::move(same);
    return;
  }
}

}  // namespace troupe::jobs
