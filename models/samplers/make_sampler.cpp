#include <stdexcept>

#include "models/samplers/ddim.h"
#include "models/samplers/dpm_solver_multistep.h"
#include "models/samplers/euler_discrete.h"
#include "models/samplers/sampler.h"
#include "models/spec/model_spec.h"

namespace troupe::models {
namespace {

struct Known {
  const char* name;
  const char* class_name;
  SamplerKind kind;
};
constexpr Known kKnown[] = {
    {"dpmsolver++", "DPMSolverMultistepScheduler", SamplerKind::kDpmSolverMultistep},
    {"ddim", "DDIMScheduler", SamplerKind::kDdim},
    {"euler", "EulerDiscreteScheduler", SamplerKind::kEulerDiscrete},
};

std::string names() {
  std::string out;
  for (const Known& known : kKnown) {
    out += (out.empty() ? "" : ", ") + std::string(known.name) + " (" + known.class_name + ")";
  }
  return out;
}

}  // namespace

at::Tensor Sampler::scale_model_input(const at::Tensor& sample, int) const {
  return sample;
}

std::vector<std::string> sampler_names() {
  std::vector<std::string> out;
  for (const Known& known : kKnown) {
    out.emplace_back(known.name);
  }
  return out;
}

std::unique_ptr<Sampler> make_sampler(const spec::SchedulerSpec& spec, const std::string& name,
                                      int num_steps) {
  const std::string& wanted = name.empty() ? spec.class_name : name;
  const Known* found = nullptr;
  for (const Known& known : kKnown) {
    if (wanted == known.name || wanted == known.class_name) found = &known;
  }
  if (!found && name.empty()) {
    throw std::runtime_error("[make_sampler] " + spec.file.string() + ": _class_name = \"" +
                             wanted + "\" is not supported; choose another sampler: " + names());
  }
  if (!found) {
    throw std::invalid_argument("[make_sampler] unknown sampler \"" + wanted + "\" (have " +
                                names() + ")");
  }
  SchedulerConfig config = parse_scheduler_config(spec.config, spec.file.string(), found->kind);
  if (wanted == "dpmsolver++") config.plus_plus = true;
  if (num_steps < 1 || num_steps > config.num_train_timesteps) {
    throw std::invalid_argument("[make_sampler] " + std::to_string(num_steps) +
                                " steps: the model was trained with " +
                                std::to_string(config.num_train_timesteps) + ", choose 1 to that");
  }
  switch (found->kind) {
    case SamplerKind::kDdim:
      return std::make_unique<DDIMScheduler>(std::move(config), num_steps);
    case SamplerKind::kEulerDiscrete:
      return std::make_unique<EulerDiscreteScheduler>(std::move(config), num_steps);
    case SamplerKind::kDpmSolverMultistep:
      break;
  }
  return std::make_unique<DPMSolverMultistepScheduler>(std::move(config), num_steps);
}

}  // namespace troupe::models
