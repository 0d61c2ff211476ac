#include "models/samplers/pndm.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "models/samplers/thresholding.h"

namespace troupe::models {
namespace {

constexpr std::size_t kKept = 3;  // predictions that the next call looks back at

}  // namespace

PNDMScheduler::PNDMScheduler(spec::SchedulerConfig config, const SamplerRun& run)
    : config_(std::move(config)), first_(run.first), schedule_(config_, run) {}

std::size_t PNDMScheduler::remembered(int call) const {
  if (is_round(call)) {
    const int round = call / PNDMSchedule::kCallsOfRound;
    return call % PNDMSchedule::kCallsOfRound == 0 ? round : round + 3;
  }
  if (!config_.skip_prk_steps) return kKept;
  constexpr std::size_t kStart[] = {0, 2, 1, 2};
  return call < static_cast<int>(std::size(kStart)) ? kStart[call] : kKept;
}

// Combines the predictions so far to the change that the move uses; `start` is the sample that the
// move begins at.
at::Tensor PNDMScheduler::combine(SamplerState& state, int call, const at::Tensor& out,
                                  const at::Tensor& sample, at::Tensor& start) const {
  auto& kept = state.history;
  start = sample;
  if (is_round(call)) {
    const int turn = call % PNDMSchedule::kCallsOfRound;
    if (turn == 0) {
      kept.insert(kept.end(), {out.clone(), (1.0 / 6) * out, sample.clone()});
      return out;
    }
    start = kept.back();
    at::Tensor& sum = kept[kept.size() - 2];
    if (turn + 1 < PNDMSchedule::kCallsOfRound) {
      sum = sum + (1.0 / 3) * out;
      return out;
    }
    at::Tensor whole = sum + (1.0 / 6) * out;
    kept.resize(kept.size() - 2);
    return whole;
  }
  const bool lower = config_.skip_prk_steps;
  if (lower && call == 1) {
    start = kept.back();
    kept.pop_back();
    return (out + kept.back()) / 2;
  }
  kept.push_back(out.clone());
  if (lower && call == 0) {
    kept.push_back(sample.clone());
    return out;
  }
  const auto back = [&kept](std::size_t k) { return kept[kept.size() - k]; };
  at::Tensor whole;
  if (kept.size() == 2) {
    whole = (3 * back(1) - back(2)) / 2;
  } else if (kept.size() == 3) {
    whole = (23 * back(1) - 16 * back(2) + 5 * back(3)) / 12;
  } else {
    whole = (1.0 / 24) * (55 * back(1) - 59 * back(2) + 37 * back(3) - 9 * back(4));
    kept.erase(kept.begin());
  }
  return whole;
}

at::Tensor PNDMScheduler::step(SamplerState& state, int i, const at::Tensor& model_output,
                               const at::Tensor& sample, const at::Tensor&) const {
  const PNDMSchedule::Move& move = schedule_.moves.at(i);
  const int call = i - first_;
  if (state.history.size() != remembered(call)) {
    throw std::invalid_argument("[PNDMScheduler] step " + std::to_string(i) + " needs " +
                                std::to_string(remembered(call)) + " earlier tensors, has " +
                                std::to_string(state.history.size()));
  }
  const at::Tensor out = mean_part(model_output, sample, false);
  at::Tensor start;
  at::Tensor direction = combine(state, call, out, sample, start);
  if (config_.prediction_type == spec::PredictionType::kVPrediction)
    direction = move.root_alpha * direction + move.root_beta * start;
  const at::Tensor next = move.sample_scale * start - move.change * direction / move.divisor;
  return next.to(sample.scalar_type());
}

at::Tensor PNDMScheduler::add_noise(const at::Tensor& clean, const at::Tensor& noise, int i) const {
  const PNDMSchedule::Noise& at = schedule_.noises.at(i);
  return at.root_alpha * clean + at.root_beta * noise;
}

}  // namespace troupe::models
