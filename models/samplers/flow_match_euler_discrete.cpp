#include "models/samplers/flow_match_euler_discrete.h"

#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {
namespace {

// The logarithm of the shift, or the shift itself: linear in the number of tokens.
double shift_of_size(const spec::SchedulerConfig& config, std::int64_t tokens) {
  const double slope = (config.max_shift - config.base_shift) /
                       (config.max_image_seq_len - config.base_image_seq_len);
  return static_cast<double>(tokens) * slope +
         (config.base_shift - slope * config.base_image_seq_len);
}

template <class T>
std::vector<double> shifted(const spec::SchedulerConfig& config, const std::vector<double>& sigmas,
                            double mu) {
  const T one = 1;
  const T factor = config.use_dynamic_shifting
                       ? static_cast<T>(config.linear_time_shift ? mu : std::exp(mu))
                       : static_cast<T>(config.shift);
  std::vector<T> out;
  for (const double value : sigmas) {
    const T s = static_cast<T>(value);
    out.push_back(config.use_dynamic_shifting ? factor / (factor + (one / s - one))
                                              : factor * s / (one + (factor - one) * s));
  }
  if (config.shift_terminal && *config.shift_terminal != 0) {
    const T scale = (one - out.back()) / static_cast<T>(1 - *config.shift_terminal);
    for (T& s : out)
      s = one - (one - s) / scale;
  }
  return {out.begin(), out.end()};
}

}  // namespace

std::vector<double> shifted_sigmas(const spec::SchedulerConfig& config,
                                   const std::vector<double>& sigmas, std::int64_t image_tokens,
                                   bool in_float32) {
  if (config.use_dynamic_shifting && image_tokens < 1) {
    throw std::invalid_argument("[sampler] " + config.file +
                                ": use_dynamic_shifting = true needs the picture's size");
  }
  const double mu = config.use_dynamic_shifting ? shift_of_size(config, image_tokens) : 0;
  return in_float32 ? shifted<float>(config, sigmas, mu) : shifted<double>(config, sigmas, mu);
}

FlowMatchEulerDiscreteScheduler::FlowMatchEulerDiscreteScheduler(spec::SchedulerConfig config,
                                                                 const SamplerRun& run)
    : config_(std::move(config)) {
  const double trained = config_.num_train_timesteps;
  const auto& given = run.settings.sigmas;
  const bool in_float32 = run.even_sigmas || !given.empty();
  std::vector<double> sigmas;
  if (!given.empty()) {
    for (const double s : given)
      sigmas.push_back(static_cast<float>(s));
  } else if (run.even_sigmas) {
    sigmas = linspace(1.0, 1.0 / run.num_steps, run.num_steps);
    for (double& s : sigmas)
      s = static_cast<float>(s);
  } else {
    // The ends of the training schedule are shifted already, and once more below, as in diffusers.
    const auto end_of = [&](float time) {
      const float s = time / static_cast<float>(trained);
      if (config_.use_dynamic_shifting) return s;
      const auto shift = static_cast<float>(config_.shift);
      return shift * s / (1.0f + static_cast<float>(config_.shift - 1) * s);
    };
    const double max = end_of(static_cast<float>(trained));
    const double min = end_of(1.0f);
    for (double time : linspace(max * trained, min * trained, run.num_steps))
      sigmas.push_back(time / trained);
  }
  sigmas = shifted_sigmas(config_, sigmas, run.image_tokens, in_float32);
  if (config_.sigma_spacing != spec::SigmaSpacing::kSchedule) {
    sigmas = respaced_sigmas(config_.sigma_spacing, sigmas.front(), sigmas.back(), run.num_steps);
  }
  for (const double s : sigmas) {
    sigmas_.push_back(static_cast<float>(s));
    timesteps_.push_back(sigmas_.back() * static_cast<float>(trained));
  }
  sigmas_.push_back(0.0f);
}

at::Tensor FlowMatchEulerDiscreteScheduler::step(SamplerState& state, int i,
                                                 const at::Tensor& model_output,
                                                 const at::Tensor& sample,
                                                 const at::Tensor& noise) const {
  const float sigma = sigmas_.at(i);
  const float next = sigmas_.at(i + 1);
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
  return sample.to(at::kFloat) - sigmas_.at(i) * mean_part(model_output, sample, false);
}

at::Tensor FlowMatchEulerDiscreteScheduler::add_noise(const at::Tensor& clean,
                                                      const at::Tensor& noise, int i) const {
  const float sigma = sigmas_.at(i);
  return sigma * noise + (1.0f - sigma) * clean;
}

}  // namespace troupe::models
