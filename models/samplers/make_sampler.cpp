#include <stdexcept>

#include "models/samplers/ddim.h"
#include "models/samplers/dpm_solver_multistep.h"
#include "models/samplers/euler_discrete.h"
#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {
at::Tensor Sampler::scale_model_input(const at::Tensor& sample, int) const {
  return sample;
}

std::unique_ptr<Sampler> make_sampler(const spec::SchedulerSpec& spec, const std::string& name,
                                      int num_steps) {
  auto config = spec::scheduler_config_for(spec, name);
  if (num_steps < 1 || num_steps > config.num_train_timesteps) {
    throw std::invalid_argument("[make_sampler] " + std::to_string(num_steps) +
                                " steps: the model was trained with " +
                                std::to_string(config.num_train_timesteps) + ", choose 1 to that");
  }
  switch (config.kind) {
    case spec::SamplerKind::kDdim:
      return std::make_unique<DDIMScheduler>(std::move(config), num_steps);
    case spec::SamplerKind::kEulerDiscrete:
      return std::make_unique<EulerDiscreteScheduler>(std::move(config), num_steps);
    case spec::SamplerKind::kDpmSolverMultistep:
      break;
  }
  return std::make_unique<DPMSolverMultistepScheduler>(std::move(config), num_steps);
}

}  // namespace troupe::models
