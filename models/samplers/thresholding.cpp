#include "models/samplers/thresholding.h"

#include <ATen/ATen.h>

#include <sstream>
#include <stdexcept>

namespace troupe::models {

at::Tensor threshold_sample(const at::Tensor& sample, double ratio, double max_value) {
  const at::Tensor flat = sample.to(at::promote_types(sample.scalar_type(), at::kFloat)).flatten(1);
  // clamp with a minimum above its maximum gives the maximum, as in diffusers.
  const at::Tensor s = at::quantile(flat.abs(), ratio, 1).clamp(1, max_value).unsqueeze(1);
  return (at::clamp(flat, -s, s) / s).reshape(sample.sizes()).to(sample.scalar_type());
}

at::Tensor clean_sample(spec::PredictionType predicts, const at::Tensor& out,
                        const at::Tensor& sample, double root_alpha, double root_beta) {
  if (predicts == spec::PredictionType::kEpsilon) return (sample - root_beta * out) / root_alpha;
  if (predicts == spec::PredictionType::kVPrediction) return root_alpha * sample - root_beta * out;
  return out;
}

at::Tensor limit_sample(const spec::SchedulerConfig& config, const at::Tensor& clean) {
  if (config.thresholding)
    return threshold_sample(clean, config.dynamic_thresholding_ratio, config.sample_max_value);
  if (!config.clip_sample) return clean;
  return clean.clamp(-config.clip_sample_range, config.clip_sample_range);
}

at::Tensor mean_part(const at::Tensor& model_output, const at::Tensor& sample,
                     bool learned_variance) {
  if (model_output.sizes() == sample.sizes()) return model_output;
  const bool doubled = learned_variance && model_output.dim() == sample.dim() && sample.dim() > 1 &&
                       model_output.size(1) == 2 * sample.size(1);
  if (doubled) {
    const at::Tensor mean = model_output.narrow(1, 0, sample.size(1));
    if (mean.sizes() == sample.sizes()) return mean;
  }
  std::ostringstream text;
  text << "[sampler] the model's output " << model_output.sizes() << " does not fit the sample "
       << sample.sizes();
  throw std::invalid_argument(text.str());
}

}  // namespace troupe::models
