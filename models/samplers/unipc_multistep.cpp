#include "models/samplers/unipc_multistep.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/number_text.h"
#include "models/samplers/beta_schedule.h"
#include "models/samplers/flow_match_euler_discrete.h"
#include "models/samplers/noise_level.h"
#include "models/samplers/table_math.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {
UniPCMultistepScheduler::UniPCMultistepScheduler(spec::SchedulerConfig config, int num_steps,
                                                 int first)
    : config_(std::move(config)), first_(first) {
  const std::vector<float> training =
      table::to_vector(training_sigmas(alphas_cumprod(config_, true)));
  std::vector<double> sigmas;
  double last = training.front();
  if (config_.sigma_spacing == spec::SigmaSpacing::kSchedule) {
    timesteps_ = spaced_timesteps(config_, num_steps, config_.num_train_timesteps, 1, true);
    sigmas = interpolate(timesteps_, training);
  } else if (config_.sigma_spacing == spec::SigmaSpacing::kFlow) {
    constexpr double kBelowOne = 1e-6;
    sigmas = linspace(1, 1.0 / config_.num_train_timesteps, num_steps + 1);
    sigmas.pop_back();
    spec::SchedulerConfig shift = config_;
    shift.shift = config_.flow_shift;
    sigmas = shifted_sigmas(shift, sigmas, 0, false);
    if (std::abs(sigmas.front() - 1) < kBelowOne) sigmas.front() -= kBelowOne;
    for (double sigma : sigmas)
      timesteps_.push_back(std::trunc(sigma * config_.num_train_timesteps));
    last = sigmas.back();
  } else {
    sigmas = respaced_sigmas(config_.sigma_spacing, config_.sigma_max.value_or(training.back()),
                             config_.sigma_min.value_or(training.front()), num_steps);
    timesteps_ = times_of_sigmas(sigmas, logs(training));
    if (config_.sigma_spacing == spec::SigmaSpacing::kKarras) {
      timesteps_ = rounded(std::move(timesteps_));
    }
    for (double& t : timesteps_)
      t = std::trunc(t);
    last = sigmas.back();
  }
  std::vector<float> levels(sigmas.begin(), sigmas.end());
  levels.push_back(config_.final_sigma_zero ? 0.0f : static_cast<float>(last));

  const bool flow = config_.sigma_spacing == spec::SigmaSpacing::kFlow;
  for (int i = 0; i < steps(); ++i) {
    const NoiseLevel start = noise_level(levels[i], flow);
    Step s;
    s.alpha = start.alpha.item<float>();
    s.sigma = start.sigma.item<float>();
    s.predictor = make_update(levels, i, order_of(i), false);
    s.corrects = i > first_ && std::ranges::find(config_.disable_corrector, i - 1) ==
                                   config_.disable_corrector.end();
    if (s.corrects) s.corrector = make_update(levels, i - 1, order_of(i - 1), true);
    steps_.push_back(std::move(s));
  }
}

int UniPCMultistepScheduler::order_of(int i) const {
  const int order = config_.lower_order_final ? std::min(config_.solver_order, steps() - i)
                                              : config_.solver_order;
  return std::min(order, std::clamp(i - first_, 0, config_.solver_order) + 1);
}

UniPCMultistepScheduler::Update UniPCMultistepScheduler::make_update(
    const std::vector<float>& sigmas, int from, int order, bool corrector) const {
  const bool flow = config_.sigma_spacing == spec::SigmaSpacing::kFlow;
  const NoiseLevel t = noise_level(sigmas[from + 1], flow);
  const NoiseLevel s0 = noise_level(sigmas[from], flow);
  const at::Tensor h = t.lambda - s0.lambda;
  Update update;
  std::vector<at::Tensor> ratios;
  for (int k = 1; k < order; ++k) {
    ratios.push_back((noise_level(sigmas[from - k], flow).lambda - s0.lambda) / h);
    update.ratios.push_back(ratios.back().item<float>());
  }
  ratios.push_back(at::ones({}));
  const at::Tensor all = at::stack(ratios);

  const bool clean = config_.plus_plus;
  const at::Tensor length = clean ? -h : h;
  const at::Tensor growth = table::expm1(length);
  const at::Tensor base = config_.bh1 ? length : growth;
  at::Tensor phi = growth / length - 1;
  double factorial = 1;
  std::vector<at::Tensor> rows, sides;
  for (int k = 1; k <= order; ++k) {
    rows.push_back(all.pow(k - 1));
    sides.push_back(phi * factorial / base);
    factorial *= k + 1;
    phi = phi / length - 1 / factorial;
  }
  const at::Tensor matrix = at::stack(rows);
  const at::Tensor side = at::stack(sides);
  // The last ratio is the end of the step, which only a corrector knows.
  if (corrector) {
    update.shares =
        order == 1 ? std::vector<float>{0.5f} : table::to_vector(at::linalg_solve(matrix, side));
    update.ratios.push_back(1.0f);
  } else if (order == 2) {
    update.shares = {0.5f};
  } else if (order > 2) {
    const int known = order - 1;
    update.shares = table::to_vector(at::linalg_solve(
        matrix.narrow(0, 0, known).narrow(1, 0, known).contiguous(), side.narrow(0, 0, known)));
  }
  const at::Tensor scale = clean ? t.alpha : t.sigma;
  update.sample_scale = (clean ? t.sigma / s0.sigma : t.alpha / s0.alpha).item<float>();
  update.clean_scale = (scale * growth).item<float>();
  update.rest = (scale * base).item<float>();
  std::vector<float> numbers = {update.sample_scale, update.clean_scale};
  if (!update.shares.empty()) {
    numbers.push_back(update.rest);
    numbers.insert(numbers.end(), update.shares.begin(), update.shares.end());
    numbers.insert(numbers.end(), update.ratios.begin(), update.ratios.end());
  }
  for (const float number : numbers) {
    if (!std::isfinite(number)) {
      throw std::runtime_error("[UniPCMultistepScheduler] " + config_.file + ": step " +
                               std::to_string(from) + " of " + std::to_string(steps()) +
                               " has no finite value: noise levels " + number_text(sigmas[from]) +
                               " and " + number_text(sigmas[from + 1]));
    }
  }
  return update;
}

at::Tensor UniPCMultistepScheduler::prediction(const Step& s, const at::Tensor& model_output,
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
  const Step& s = steps_.at(i);
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
  const auto updated = [&](const Update& update, const at::Tensor& from, const at::Tensor& end) {
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
  const Step& s = steps_.at(i);
  return s.alpha * clean + s.sigma * noise;
}

}  // namespace troupe::models
