#include "models/samplers/flow_match_euler_discrete.h"

#include <ATen/ATen.h>

#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

FlowMatchEulerDiscreteScheduler::FlowMatchEulerDiscreteScheduler(spec::SchedulerConfig config,
                                                                 const SamplerRun& run)
    : config_(std::move(config)), schedule_(config_, run) {}

at::Tensor FlowMatchEulerDiscreteScheduler::step(SamplerState& state, int i,
                                                 const at::Tensor& model_output,
                                                 const at::Tensor& sample,
                                                 const at::Tensor& noise) const {
  const float sigma = schedule_.sigmas.at(i);
  const float next = schedule_.sigmas.at(i + 1);
  const at::Tensor out = mean_part(model_output, sample, false);
  if (config_.stochastic) {
    return ((1.0f - next) * clean(state, i, out, sample) + next * step_noise(noise, sample, i))
        .to(out.scalar_type());
  }
  return (sample.to(at::kFloat) + (next - sigma) * out).to(out.scalar_type());
}

at::Tensor FlowMatchEulerDiscreteScheduler::clean(SamplerState&, int i,
                                                  const at::Tensor& model_output,
                                                  const at::Tensor& sample,
                                                  const at::Tensor&) const {
  return sample.to(at::kFloat) - schedule_.sigmas.at(i) * mean_part(model_output, sample, false);
}

at::Tensor FlowMatchEulerDiscreteScheduler::add_noise(const at::Tensor& clean,
                                                      const at::Tensor& noise, int i) const {
  const float sigma = schedule_.sigmas.at(i);
  return sigma * noise + (1.0f - sigma) * clean;
}

}  // namespace troupe::models
