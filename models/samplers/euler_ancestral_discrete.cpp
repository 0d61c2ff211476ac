#include "models/samplers/euler_ancestral_discrete.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

EulerAncestralDiscreteScheduler::EulerAncestralDiscreteScheduler(spec::SchedulerConfig config,
                                                                 const SamplerRun& run)
    : config_(std::move(config)), schedule_(config_, run) {}

at::Tensor EulerAncestralDiscreteScheduler::scale_model_input(const at::Tensor& sample,
                                                              int i) const {
  const float sigma = schedule_.sigmas.at(i);
  return sample / std::sqrt(sigma * sigma + 1.0f);
}

at::Tensor EulerAncestralDiscreteScheduler::predict(int i, const at::Tensor& model_output,
                                                    const at::Tensor& sample) const {
  const float sigma = schedule_.sigmas.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor x = sample.to(at::kFloat);
  if (config_.prediction_type == spec::PredictionType::kEpsilon) return x - sigma * out;
  const float squared = sigma * sigma + 1.0f;
  return out * (-sigma / std::sqrt(squared)) + x / squared;
}

at::Tensor EulerAncestralDiscreteScheduler::step(SamplerState&, int i,
                                                 const at::Tensor& model_output,
                                                 const at::Tensor& sample,
                                                 const at::Tensor& noise) const {
  const at::Tensor clean = predict(i, model_output, sample);
  const at::Tensor x = sample.to(at::kFloat);
  const float from = schedule_.sigmas.at(i);
  const at::Tensor next = x + ((x - clean) / from) * (schedule_.down[i] - from);
  return (next + step_noise(noise, sample, i) * schedule_.up[i]).to(model_output.scalar_type());
}

at::Tensor EulerAncestralDiscreteScheduler::clean(SamplerState&, int i,
                                                  const at::Tensor& model_output,
                                                  const at::Tensor& sample,
                                                  const at::Tensor&) const {
  return predict(i, model_output, sample).to(model_output.scalar_type());
}

at::Tensor EulerAncestralDiscreteScheduler::add_noise(const at::Tensor& clean,
                                                      const at::Tensor& noise, int i) const {
  return clean + noise * schedule_.sigmas.at(i);
}

}  // namespace troupe::models
