#pragma once
#include <cstdint>
#include <string>

#include "controller/deployments/deployments.h"
#include "controller/jobs/job_table.h"
#include "controller/plan/machine.h"

namespace troupe::jobs {

/// Returns the model as deployments know it: with the LoRAs of the plan's request.
cluster::Model model_of(const std::string& folder, std::uint64_t fingerprint,
                        const plan::Plan& plan);

/// Deployments and jobs that may have divided a model's blocks already.
struct LoadedStages {
  const cluster::Members& members;
  const cluster::Deployments& deployments;
  const JobTable& table;
};

/// Gives a plan whose stages nobody listed, of the model in that folder, the stages of a deployment
/// that differs in nothing else, or else of a job that has not ended. Figures that change a little,
/// as hosts come and go, would otherwise have the model loaded a second time. The plan's own stages
/// stand where they are loaded, too, and where the others would take a quarter more time or more
/// memory than there is.
void reuse_stages(plan::Plan& plan, const std::string& folder, std::uint64_t fingerprint,
                  const spec::ModelSpec& model, const plan::Machine& machine,
                  const LoadedStages& settled);

}  // namespace troupe::jobs
