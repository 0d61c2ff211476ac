#include "models/samplers/lcm.h"

#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "models/samplers/beta_schedule.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {
namespace {

constexpr float kDataDeviation = 0.5f;

}  // namespace

LCMScheduler::LCMScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)) {
  const int num_steps = run.num_steps;
  const int original = config_.original_inference_steps;
  timesteps_ = run.settings.timesteps;
  const at::Tensor product = alphas_cumprod(config_, false);
  const float* alphas = product.const_data_ptr<float>();
  const int stride = config_.num_train_timesteps / original;
  // Evenly spread over the distilled times, the first of each share.
  const double share = static_cast<double>(original) / num_steps;
  for (int i = static_cast<int>(timesteps_.size()); i < num_steps; ++i) {
    const int index = static_cast<int>(std::floor(i * share));
    timesteps_.push_back((original - index) * stride - 1);
  }
  for (size_t i = 0; i < timesteps_.size(); ++i) {
    const int t = static_cast<int>(timesteps_[i]);
    const int next = i + 1 < timesteps_.size() ? static_cast<int>(timesteps_[i + 1]) : t;
    const float scaled = static_cast<float>(t) * static_cast<float>(config_.timestep_scaling);
    const float sum = scaled * scaled + kDataDeviation * kDataDeviation;
    steps_.push_back({std::sqrt(alphas[t]), std::sqrt(1 - alphas[t]), std::sqrt(alphas[next]),
                      std::sqrt(1 - alphas[next]), kDataDeviation * kDataDeviation / sum,
                      scaled / std::sqrt(sum)});
  }
}

at::Tensor LCMScheduler::clean(SamplerState&, int i, const at::Tensor& model_output,
                               const at::Tensor& sample, const at::Tensor&) const {
  const Step& s = steps_.at(i);
  const at::Tensor out = mean_part(model_output, sample, false);
  const at::Tensor clean = limit_sample(
      config_, clean_sample(config_.prediction_type, out, sample, s.root_alpha, s.root_beta));
  return s.clean_share * clean + s.sample_share * sample;
}

at::Tensor LCMScheduler::step(SamplerState& state, int i, const at::Tensor& model_output,
                              const at::Tensor& sample, const at::Tensor& noise) const {
  const at::Tensor denoised = clean(state, i, model_output, sample);
  if (!noise_needed(i)) return denoised;
  const Step& s = steps_[i];
  return s.next_root_alpha * denoised +
         s.next_root_beta * step_noise(noise, sample, i).to(denoised.scalar_type());
}

at::Tensor LCMScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const {
  const Step& s = steps_.at(i);
  return s.root_alpha * clean + s.root_beta * noise;
}

}  // namespace troupe::models
