#include <ATen/ATen.h>

#include <sstream>
#include <stdexcept>

#include "models/samplers/ddim.h"
#include "models/samplers/ddpm.h"
#include "models/samplers/dpm_solver_multistep.h"
#include "models/samplers/euler_ancestral_discrete.h"
#include "models/samplers/euler_discrete.h"
#include "models/samplers/flow_match_euler_discrete.h"
#include "models/samplers/later_steps.h"
#include "models/samplers/lcm.h"
#include "models/samplers/pndm.h"
#include "models/samplers/sampler.h"
#include "models/samplers/unipc_multistep.h"
#include "models/samplers/user_samplers.h"
#include "models/spec/model_spec.h"
#include "models/spec/scheduler_config.h"

namespace troupe::models {
at::Tensor Sampler::scale_model_input(const at::Tensor& sample, int) const {
  return sample;
}

at::Tensor step_noise(const at::Tensor& noise, const at::Tensor& sample, int i) {
  if (!noise.defined() || noise.sizes() != sample.sizes()) {
    std::ostringstream text;
    text << "[sampler] step " << i << " of this sampler needs noise " << sample.sizes() << ", got ";
    if (noise.defined()) {
      text << noise.sizes();
    } else {
      text << "none";
    }
    throw std::invalid_argument(text.str());
  }
  return noise.to(sample.device(), at::kFloat);
}

spec::UserMakers<MakeSampler>& user_samplers() {
  static spec::UserMakers<MakeSampler> samplers("sampler");
  return samplers;
}

std::unique_ptr<Sampler> make_sampler(const spec::SchedulerSpec& spec, const std::string& name,
                                      int num_steps) {
  return make_sampler(spec, name, SamplerRun{.num_steps = num_steps});
}

namespace {

std::unique_ptr<Sampler> make_whole(const spec::SchedulerSpec& spec, const std::string& name,
                                    const SamplerRun& run) {
  const int num_steps = run.num_steps;
  auto config = spec::scheduler_config_for(spec, name, run.task);
  spec::check_steps(config, num_steps, run.settings);
  if (const auto given = spec::given_steps(config, run.settings); given && *given != num_steps) {
    throw std::invalid_argument("[make_sampler] " + std::to_string(num_steps) +
                                " steps, but given timesteps or sigmas make " +
                                std::to_string(*given));
  }
  switch (config.kind) {
    case spec::SamplerKind::kDdim:
      return std::make_unique<DDIMScheduler>(std::move(config), run);
    case spec::SamplerKind::kEulerDiscrete:
      return std::make_unique<EulerDiscreteScheduler>(std::move(config), run);
    case spec::SamplerKind::kDdpm:
      return std::make_unique<DDPMScheduler>(std::move(config), run);
    case spec::SamplerKind::kEulerAncestral:
      return std::make_unique<EulerAncestralDiscreteScheduler>(std::move(config), run);
    case spec::SamplerKind::kUniPc:
      return std::make_unique<UniPCMultistepScheduler>(std::move(config), run);
    case spec::SamplerKind::kFlowMatchEuler:
      return std::make_unique<FlowMatchEulerDiscreteScheduler>(std::move(config), run);
    case spec::SamplerKind::kLcm:
      return std::make_unique<LCMScheduler>(std::move(config), run);
    case spec::SamplerKind::kPndm:
      return std::make_unique<PNDMScheduler>(std::move(config), run);
    case spec::SamplerKind::kUser:
      return user_samplers().find(config.user_name)(config.user_config, run);
    case spec::SamplerKind::kDpmSolverMultistep:
      break;
  }
  return std::make_unique<DPMSolverMultistepScheduler>(std::move(config), run);
}

}  // namespace

std::unique_ptr<Sampler> make_sampler(const spec::SchedulerSpec& spec, const std::string& name,
                                      const SamplerRun& run) {
  auto sampler = make_whole(spec, name, run);
  if (run.first == 0) return sampler;
  return std::make_unique<LaterSteps>(std::move(sampler), run.first);
}

}  // namespace troupe::models
