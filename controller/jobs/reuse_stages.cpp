#include "controller/jobs/reuse_stages.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "controller/plan/layout.h"
#include "controller/plan/memory.h"
#include "controller/plan/planner.h"

namespace troupe::jobs {
namespace {

/// Ratio of times beyond which the model is rather loaded anew than computed with by such stages.
constexpr double kWorthLoading = 1.25;

void add_once(std::vector<Split>& splits, Split split) {
  if (std::ranges::find(splits, split) == splits.end()) splits.push_back(std::move(split));
}

}  // namespace

cluster::Model model_of(const std::string& folder, std::uint64_t fingerprint,
                        const plan::Plan& plan) {
  return model_of(folder, fingerprint, plan.request, plan.lora_fingerprints,
                  plan.controlnet_fingerprints);
}

cluster::Model model_of(const std::string& folder, std::uint64_t fingerprint,
                        const wire::ImageRequest& request,
                        const std::vector<std::uint64_t>& lora_fingerprints,
                        const std::vector<std::uint64_t>& controlnet_fingerprints) {
  cluster::Model model{folder, fingerprint};
  const auto known = [](const std::vector<std::uint64_t>& fingerprints, std::size_t i) {
    return i < fingerprints.size() ? fingerprints[i] : 0;
  };
  for (std::size_t i = 0; i < request.loras.size(); ++i)
    model.loras.push_back({request.loras[i], known(lora_fingerprints, i)});
  for (std::size_t i = 0; i < request.controlnets.size(); ++i)
    model.controlnets.push_back({request.controlnets[i], known(controlnet_fingerprints, i)});
  return model;
}

KnownSplits known_splits(const cluster::Model& model, const LoadedStages& where) {
  KnownSplits known;
  std::set<std::uint64_t> seen;
  for (const auto& [id, actor] : where.members.all()) {
    for (const auto& one : where.deployments.at(id)) {
      if (one->degrees.pp > 1 && one->model == model && !where.deployments.is_drained(*one) &&
          seen.insert(one->id).second)
        add_once(known.loaded, {one->dtype, one->weight_dtype, one->offload, one->degrees,
                                one->stages, one->groups});
    }
  }
  for (const auto& [id, job] : where.table.all()) {
    const auto& plan = job.plan;
    if (!has_ended(job.state) && plan.degrees.pp > 1 && !plan.stages.empty() &&
        model_of(job.spec.model, job.fingerprint, plan) == model)
      add_once(known.planned, {plan.request.dtype, plan.request.weight_dtype, plan.request.offload,
                               plan.degrees, plan.stages, plan.groups});
  }
  return known;
}

void reuse_stages(plan::Plan& plan, const spec::ModelSpec& model, const plan::Machine& machine,
                  const KnownSplits& known, const cluster::Capacity& capacity) {
  if (plan.degrees.pp == 1) return;
  // Stages say which groups a plan has: who decodes must agree, too.
  const auto fitting = [&](const std::vector<Split>& splits) {
    std::vector<plan::Plan> plans;
    for (const auto& split : splits) {
      if (split.degrees != plan.degrees || split.dtype != plan.request.dtype ||
          split.weight_dtype != plan.request.weight_dtype || split.offload != plan.request.offload)
        continue;
      auto same = plan;
      same.stages = split.stages;
      same.groups.clear();
      plan::set_groups(same, model);
      if (same.groups == split.groups) plans.push_back(std::move(same));
    }
    return plans;
  };
  auto others = fitting(known.loaded);
  if (others.empty()) others = fitting(known.planned);
  if (std::ranges::find(others, plan.stages, &plan::Plan::stages) != others.end()) return;
  const auto seconds = [&](const plan::Plan& other) {
    const auto mix = plan::parallelism_of(other.degrees, other.vae_degree);
    return plan::judge(mix, other, model, machine).cost.total();
  };
  const double most = seconds(plan) * kWorthLoading;
  for (auto& same : others) {
    same.memory = plan::estimate_memory(same, model);
    if (cluster::shortage(capacity, same) || seconds(same) > most) continue;
    plan = std::move(same);
    return;
  }
}

void reuse_stages(plan::Plan& plan, const std::string& folder, std::uint64_t fingerprint,
                  const spec::ModelSpec& model, const plan::Machine& machine,
                  const LoadedStages& where) {
  if (plan.degrees.pp == 1) return;
  reuse_stages(plan, model, machine, known_splits(model_of(folder, fingerprint, plan), where),
               cluster::capacity_of(where.members));
}

}  // namespace troupe::jobs
