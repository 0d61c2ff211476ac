#include "models/samplers/dpm_solver_multistep.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

DPMSolverMultistepScheduler::DPMSolverMultistepScheduler(spec::SchedulerConfig config,
                                                         const SamplerRun& run)
    : config_(std::move(config)), first_(run.first), schedule_(config_, run) {}

at::Tensor DPMSolverMultistepScheduler::prediction(const DPMSolverSchedule::Step& s,
                                                   const at::Tensor& model_output,
                                                   const at::Tensor& sample) const {
  const at::Tensor out = mean_part(model_output, sample, config_.learned_variance);
  const auto limited = [&](const at::Tensor& clean) {
    if (!config_.thresholding) return clean;
    return threshold_sample(clean, config_.dynamic_thresholding_ratio, config_.sample_max_value);
  };
  if (config_.plus_plus) {
    switch (config_.prediction_type) {
      case spec::PredictionType::kEpsilon:
        return limited((sample - s.sigma * out) / s.alpha);
      case spec::PredictionType::kSample:
        return limited(out);
      case spec::PredictionType::kVPrediction:
        return limited(s.alpha * sample - s.sigma * out);
      case spec::PredictionType::kFlow:
        return limited(sample - s.sigma * out);
    }
  }
  at::Tensor noise = out;
  if (config_.prediction_type == spec::PredictionType::kSample) {
    noise = (sample - s.alpha * out) / s.sigma;
  } else if (config_.prediction_type == spec::PredictionType::kVPrediction) {
    noise = s.alpha * out + s.sigma * sample;
  }
  if (!config_.thresholding) return noise;
  const at::Tensor clean = limited((sample - s.sigma * noise) / s.alpha);
  return (sample - s.alpha * clean) / s.sigma;
}

at::Tensor DPMSolverMultistepScheduler::step(SamplerState& state, int i,
                                             const at::Tensor& model_output,
                                             const at::Tensor& sample,
                                             const at::Tensor& noise) const {
  const DPMSolverSchedule::Step& s = schedule_.steps.at(i);
  const auto remembered = static_cast<size_t>(std::clamp(i - first_, 0, config_.solver_order - 1));
  if (state.history.size() != remembered) {
    throw std::invalid_argument("[DPMSolverMultistepScheduler] step " + std::to_string(i) +
                                " needs " + std::to_string(remembered) +
                                " earlier predictions, has " +
                                std::to_string(state.history.size()));
  }
  const at::Tensor m0 = prediction(s, model_output, sample);
  at::Tensor next = s.sample_scale * sample.to(at::kFloat) + s.d0 * m0;
  if (s.order >= 2) {
    const at::Tensor& m1 = state.history.back();
    at::Tensor d1 = s.inverse_r0 * (m0 - m1);
    if (s.order == 3) {
      const at::Tensor change = d1 - s.inverse_r1 * (m1 - state.history[state.history.size() - 2]);
      next = next + s.d1 * (d1 + s.weight * change) + s.d2 * (s.inverse_sum * change);
    } else {
      next = next + s.d1 * d1;
    }
  }
  if (config_.stochastic) next = next + s.noise * step_noise(noise, sample, i);
  if (config_.solver_order > 1) {
    state.history.push_back(m0);
    if (state.history.size() >= static_cast<size_t>(config_.solver_order)) {
      state.history.erase(state.history.begin());
    }
  }
  return next.to(m0.scalar_type());
}

at::Tensor DPMSolverMultistepScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise,
                                                  int i) const {
  const DPMSolverSchedule::Step& s = schedule_.steps.at(i);
  return s.alpha * clean + s.sigma * noise;
}

}  // namespace troupe::models
