#include "models/samplers/ddpm.h"

#include <ATen/ATen.h>

#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

DDPMScheduler::DDPMScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)), schedule_(config_, run) {}

at::Tensor DDPMScheduler::predict(int i, const at::Tensor& out, const at::Tensor& sample) const {
  const DDPMSchedule::Step& s = schedule_.steps.at(i);
  return limit_sample(
      config_, clean_sample(config_.prediction_type, out, sample, s.root_alpha, s.root_beta));
}

at::Tensor DDPMScheduler::step(SamplerState&, int i, const at::Tensor& model_output,
                               const at::Tensor& sample, const at::Tensor& noise) const {
  const at::Tensor out = mean_part(model_output, sample, false);
  const DDPMSchedule::Step& s = schedule_.steps.at(i);
  const at::Tensor next = s.clean_scale * predict(i, out, sample) + s.sample_scale * sample;
  if (!noise_needed(i)) return next;
  return next + s.deviation * step_noise(noise, sample, i).to(out.scalar_type());
}

at::Tensor DDPMScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                                const at::Tensor& sample, const at::Tensor&) const {
  return predict(i, mean_part(model_output, sample, false), sample);
}

at::Tensor DDPMScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const {
  const DDPMSchedule::Step& s = schedule_.steps.at(i);
  return s.root_alpha * clean + s.root_beta * noise;
}

}  // namespace troupe::models
