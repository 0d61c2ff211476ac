#include "models/samplers/pndm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "models/samplers/beta_schedule.h"
#include "models/samplers/thresholding.h"
#include "models/samplers/timestep_spacing.h"

namespace troupe::models {
namespace {

constexpr int kOrder = 4;
constexpr int kCallsOfRound = 4;
constexpr std::size_t kKept = 3;  // predictions that the next call looks back at

}  // namespace

PNDMScheduler::PNDMScheduler(spec::SchedulerConfig config, int num_steps, int first)
    : config_(std::move(config)), first_(first) {
  set_times(num_steps);
  const int trained = config_.num_train_timesteps;
  const at::Tensor product = alphas_cumprod(config_, false);
  const std::vector<float> alphas(product.const_data_ptr<float>(),
                                  product.const_data_ptr<float>() + trained);
  const int stride = trained / num_steps;
  for (int i = 0; i < steps(); ++i) {
    const int time = static_cast<int>(timesteps_[i]);
    const int call = i - first_;
    if (call < 0) {
      moves_.emplace_back();
      noises_.emplace_back();
      continue;
    }
    int from = time;
    int to = time - stride;
    if (is_round(call)) {
      from = round_times_[call / kCallsOfRound * kCallsOfRound];
      to = call % 2 == 0 ? time - stride / 2 : time;
    } else if (call == 1) {  // the first step again, from its start
      from = time + stride;
      to = time;
    }
    for (const int visited : {time, from}) {
      if (visited >= 0 && visited < trained) continue;
      throw std::invalid_argument(
          "[PNDMScheduler] " + config_.file + ": " + std::to_string(num_steps) +
          " steps with steps_offset = " + std::to_string(config_.steps_offset) + " visit time " +
          std::to_string(visited) + ", the model was trained below " + std::to_string(trained));
    }
    moves_.push_back(make_move(alphas, from, to));
    noises_.push_back({std::sqrt(alphas[time]), std::sqrt(1 - alphas[time])});
  }
}

void PNDMScheduler::set_times(int num_steps) {
  const auto times = spaced_timesteps(config_, num_steps, config_.num_train_timesteps, 0, true);
  const auto count = times.size();
  if (config_.skip_prk_steps) {
    timesteps_ = times;
    if (count > 1) timesteps_.insert(timesteps_.begin() + 1, times[1]);
    return;
  }
  if (count < kOrder) {
    throw std::invalid_argument("[PNDMScheduler] " + config_.file + ": " +
                                std::to_string(num_steps) +
                                " steps with skip_prk_steps = false: the rounds need 4");
  }
  // The noisiest times and what lies half a stride above each, the very first's left out; all but
  // the first and the last twice.
  const int half = config_.num_train_timesteps / num_steps / 2;
  std::vector<int> ascending;
  for (int k = kOrder - 1; k >= 0; --k) {
    ascending.push_back(static_cast<int>(times[k]));
    ascending.push_back(static_cast<int>(times[k]) + half);
  }
  ascending.pop_back();
  for (const int time : ascending)
    round_times_.insert(round_times_.end(), 2, time);
  round_times_.erase(round_times_.begin());
  round_times_.pop_back();
  std::ranges::reverse(round_times_);
  timesteps_.assign(round_times_.begin(), round_times_.end());
  timesteps_.insert(timesteps_.end(), times.begin() + kOrder - 1, times.end());
}

PNDMScheduler::Move PNDMScheduler::make_move(const std::vector<float>& alphas, int from,
                                             int to) const {
  const float alpha = alphas[from];
  const float beta = 1 - alpha;
  const float last = config_.set_alpha_to_one ? 1.0f : alphas[0];
  const float next = to >= 0 ? alphas.at(to) : last;
  Move move;
  move.root_alpha = std::sqrt(alpha);
  move.root_beta = std::sqrt(beta);
  move.sample_scale = std::sqrt(next / alpha);
  move.change = next - alpha;
  move.divisor = alpha * std::sqrt(1 - next) + std::sqrt(alpha * beta * next);
  return move;
}

std::size_t PNDMScheduler::remembered(int call) const {
  if (is_round(call)) {
    const int round = call / kCallsOfRound;
    return call % kCallsOfRound == 0 ? round : round + 3;
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
    const int turn = call % kCallsOfRound;
    if (turn == 0) {
      kept.insert(kept.end(), {out.clone(), (1.0 / 6) * out, sample.clone()});
      return out;
    }
    start = kept.back();
    at::Tensor& sum = kept[kept.size() - 2];
    if (turn + 1 < kCallsOfRound) {
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
  const Move& move = moves_.at(i);
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
  const Noise& at = noises_.at(i);
  return at.root_alpha * clean + at.root_beta * noise;
}

}  // namespace troupe::models
