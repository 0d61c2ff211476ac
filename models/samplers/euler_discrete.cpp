#include "models/samplers/euler_discrete.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

EulerDiscreteScheduler::EulerDiscreteScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)), schedule_(config_, run) {}

at::Tensor EulerDiscreteScheduler::scale_model_input(const at::Tensor& sample, int i) const {
  const float sigma = schedule_.sigmas.at(i);
  return sample / std::sqrt(sigma * sigma + 1.0f);
}

at::Tensor EulerDiscreteScheduler::predict(int i, const at::Tensor& model_output,
                                           const at::Tensor& sample) const {
  const float sigma = schedule_.sigmas.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor x = sample.to(at::kFloat);
  at::Tensor clean;
  switch (config_.prediction_type) {
    case spec::PredictionType::kEpsilon:
      clean = x - sigma * out;
      break;
    case spec::PredictionType::kSample:
      clean = out;
      break;
    case spec::PredictionType::kVPrediction: {
      const float squared = sigma * sigma + 1.0f;
      clean = out * (-sigma / std::sqrt(squared)) + x / squared;
      break;
    }
    case spec::PredictionType::kFlow:
      break;  // refused with the configuration
  }
  return clean;
}

at::Tensor EulerDiscreteScheduler::step(SamplerState&, int i, const at::Tensor& model_output,
                                        const at::Tensor& sample, const at::Tensor&) const {
  const at::Tensor clean = predict(i, model_output, sample);
  const at::Tensor x = sample.to(at::kFloat);
  const float sigma = schedule_.sigmas.at(i);
  const float change = schedule_.sigmas.at(i + 1) - sigma;
  return (x + ((x - clean) / sigma) * change).to(model_output.scalar_type());
}

at::Tensor EulerDiscreteScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                                         const at::Tensor& sample, const at::Tensor&) const {
  return predict(i, model_output, sample).to(model_output.scalar_type());
}

at::Tensor EulerDiscreteScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise,
                                             int i) const {
  return clean + noise * schedule_.sigmas.at(i);
}

}  // namespace troupe::models
