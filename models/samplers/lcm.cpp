#include "models/samplers/lcm.h"

#include <ATen/ATen.h>

#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

LCMScheduler::LCMScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)), schedule_(config_, run) {}

at::Tensor LCMScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                               const at::Tensor& sample, const at::Tensor&) const {
  const LCMSchedule::Step& s = schedule_.steps.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor clean = limit_sample(
      config_, clean_sample(config_.prediction_type, out, sample, s.root_alpha, s.root_beta));
  return s.clean_share * clean + s.sample_share * sample;
}

at::Tensor LCMScheduler::step(SamplerState& state, int i, const at::Tensor& model_output,
                              const at::Tensor& sample, const at::Tensor& noise) const {
  const at::Tensor denoised = clean(state, i, model_output, sample);
  if (!noise_needed(i)) return denoised;
  const LCMSchedule::Step& s = schedule_.steps[i];
  return s.next_root_alpha * denoised +
         s.next_root_beta * step_noise(noise, sample, i).to(denoised.scalar_type());
}

at::Tensor LCMScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const {
  const LCMSchedule::Step& s = schedule_.steps.at(i);
  return s.root_alpha * clean + s.root_beta * noise;
}

}  // namespace troupe::models
