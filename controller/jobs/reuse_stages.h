#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "controller/deployments/deployments.h"
#include "controller/jobs/job_table.h"
#include "controller/plan/machine.h"

namespace troupe::jobs {

/// Returns the model as deployments know it: with the LoRAs of the plan's request.
cluster::Model model_of(const std::string& folder, std::uint64_t fingerprint,
                        const plan::Plan& plan);
/// Same as above, with these LoRAs and the fingerprints of their files.
cluster::Model model_of(const std::string& folder, std::uint64_t fingerprint,
                        const wire::ImageRequest& request,
                        const std::vector<std::uint64_t>& lora_fingerprints,
                        const std::vector<std::uint64_t>& controlnet_fingerprints);

/// Deployments and jobs that may have divided a model's blocks already.
struct LoadedStages {
  const cluster::Members& members;
  const cluster::Deployments& deployments;
  const JobTable& table;
};

/// Stages that a model's blocks were divided into, and the groups between them.
struct Split {
  ComputeType dtype = ComputeType::float32;
  WeightChoice weight_dtype = WeightChoice::as_computed;
  OffloadChoice offload = OffloadChoice::none;
  mesh::Degrees degrees;
  std::vector<plan::Stage> stages;
  std::vector<plan::GroupPlan> groups;

  bool operator==(const Split&) const = default;
};

/// A model's splits, each once: a value, which a plan can be made with on another thread.
struct KnownSplits {
  std::vector<Split> loaded;   // of deployments
  std::vector<Split> planned;  // of jobs that have not ended
};
KnownSplits known_splits(const cluster::Model& model, const LoadedStages& where);

/// Gives a plan whose stages nobody listed the stages of a deployment that differs in nothing else,
/// or else of a job that has not ended. Figures that change a little, as hosts come and go, would
/// otherwise have the model loaded a second time. The plan's own stages stand where they are
/// loaded, too, and where the others would take a quarter more time or more memory than `capacity`
/// has. `known`: the splits of the plan's model. Pure.
void reuse_stages(plan::Plan& plan, const spec::ModelSpec& model, const plan::Machine& machine,
                  const KnownSplits& known, const cluster::Capacity& capacity);
/// Same as above, with what the cluster has now of the model in that folder.
void reuse_stages(plan::Plan& plan, const std::string& folder, std::uint64_t fingerprint,
                  const spec::ModelSpec& model, const plan::Machine& machine,
                  const LoadedStages& where);

}  // namespace troupe::jobs
