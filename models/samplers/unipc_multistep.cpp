#include "models/samplers/unipc_multistep.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {

UniPCMultistepScheduler::UniPCMultistepScheduler(spec::SchedulerConfig config,
                                                 const SamplerRun& run)
    : config_(std::move(config)), first_(run.first), schedule_(config_, run) {
  for (auto& step : schedule_.steps) {
    for (auto* update : {&step.predictor, &step.corrector}) {
      const auto n = static_cast<std::int64_t>(update->sides.size());
      if (n == 0) continue;
      const at::Tensor shares =
          at::linalg_solve(at::tensor(update->matrix).view({n, n}), at::tensor(update->sides));
      update->shares.assign(shares.const_data_ptr<float>(), shares.const_data_ptr<float>() + n);
    }
  }
}

at::Tensor UniPCMultistepScheduler::prediction(const UniPCSchedule::Step& s,
                                               const at::Tensor& model_output,
                                               const at::Tensor& sample) const {
  const at::Tensor out = mean_part(model_output, sample, false);
  using spec::PredictionType;
  if (!config_.plus_plus) {
    if (config_.prediction_type == PredictionType::kSample) {
      return (sample - s.alpha * out) / s.sigma;
    }
    if (config_.prediction_type == PredictionType::kVPrediction) {
      return s.alpha * out + s.sigma * sample;
    }
    return out;
  }
  const at::Tensor clean =
      config_.prediction_type == PredictionType::kFlow
          ? sample - s.sigma * out
          : clean_sample(config_.prediction_type, out, sample, s.alpha, s.sigma);
  if (!config_.thresholding) return clean;
  return threshold_sample(clean, config_.dynamic_thresholding_ratio, config_.sample_max_value);
}

at::Tensor UniPCMultistepScheduler::step(SamplerState& state, int i, const at::Tensor& model_output,
                                         const at::Tensor& sample, const at::Tensor&) const {
  const UniPCSchedule::Step& s = schedule_.steps.at(i);
  const auto order = static_cast<size_t>(config_.solver_order);
  const size_t remembered = i <= first_ ? 0 : std::min(static_cast<size_t>(i - first_), order) + 1;
  if (state.history.size() != remembered) {
    throw std::invalid_argument("[UniPCMultistepScheduler] step " + std::to_string(i) + " needs " +
                                std::to_string(remembered) + " earlier tensors, has " +
                                std::to_string(state.history.size()));
  }
  const at::Tensor now = prediction(s, model_output, sample);
  std::vector<at::Tensor> outputs = state.history;  // oldest first
  at::Tensor before;
  if (i > first_) {
    before = outputs.back();
    outputs.pop_back();
  }
  const auto updated = [&](const UniPCSchedule::Update& update, const at::Tensor& from,
                           const at::Tensor& end) {
    const at::Tensor& m0 = outputs.back();
    at::Tensor next = update.sample_scale * from - update.clean_scale * m0;
    at::Tensor rest;
    for (size_t k = 0; k < update.shares.size(); ++k) {
      const bool at_end = end.defined() && k + 1 == update.shares.size();
      const at::Tensor& m = at_end ? end : outputs[outputs.size() - 2 - k];
      const at::Tensor part = update.shares[k] * ((m - m0) / update.ratios[k]);
      rest = rest.defined() ? rest + part : part;
    }
    return rest.defined() ? next - update.rest * rest : next;
  };
  // The copy has memory of its own, because the caller writes over the sample.
  const at::Tensor corrected = s.corrects ? updated(s.corrector, before, now) : sample.clone();
  outputs.push_back(now);
  if (outputs.size() > order) outputs.erase(outputs.begin());
  const at::Tensor next = updated(s.predictor, corrected, {});
  state.history = std::move(outputs);
  state.history.push_back(corrected);
  return next.to(sample.scalar_type());
}

at::Tensor UniPCMultistepScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise,
                                              int i) const {
  const UniPCSchedule::Step& s = schedule_.steps.at(i);
  return s.alpha * clean + s.sigma * noise;
}

}  // namespace troupe::models
