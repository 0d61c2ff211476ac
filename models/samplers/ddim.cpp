#include "models/samplers/ddim.h"

#include <ATen/ATen.h>

#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

DDIMScheduler::DDIMScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)), eta_(run.settings.eta), schedule_(config_, run) {}

DDIMScheduler::Prediction DDIMScheduler::predict(int i, const at::Tensor& model_output,
                                                 const at::Tensor& sample) const {
  const DDIMSchedule::Step& s = schedule_.steps.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor clean =
      clean_sample(config_.prediction_type, out, sample, s.root_alpha, s.root_beta);
  at::Tensor noise = out;
  if (config_.prediction_type == spec::PredictionType::kSample) {
    noise = (sample - s.root_alpha * clean) / s.root_beta;
  } else if (config_.prediction_type == spec::PredictionType::kVPrediction) {
    noise = s.root_alpha * out + s.root_beta * sample;
  }
  return {limit_sample(config_, clean), noise};
}

at::Tensor DDIMScheduler::step(SamplerState&, int i, const at::Tensor& model_output,
                               const at::Tensor& sample, const at::Tensor& drawn) const {
  const auto [clean, noise] = predict(i, model_output, sample);
  const DDIMSchedule::Step& s = schedule_.steps[i];
  const at::Tensor next = s.next_root_alpha * clean + s.next_root_beta * noise;
  if (!noise_needed(i)) return next;
  return next + s.deviation * step_noise(drawn, sample, i).to(next.scalar_type());
}

at::Tensor DDIMScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                                const at::Tensor& sample, const at::Tensor&) const {
  return predict(i, model_output, sample).clean;
}

at::Tensor DDIMScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const {
  const DDIMSchedule::Step& s = schedule_.steps.at(i);
  return s.root_alpha * clean + s.root_beta * noise;
}

}  // namespace troupe::models
