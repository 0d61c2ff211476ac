#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "actors/stage/job.h"

namespace troupe::actors {

TaskResult Job::micro_step(Place place) {
  const auto rows = own_rows(place.patch);
  const auto step = network_step(place);
  layers_.begin();
  at::Tensor hidden =
      first_stage() ? network_->embed(step, network_input(place, rows)) : take_hidden(step);
  hidden = network_->run(step, std::move(hidden));
  const bool injected = std::exchange(poisoned_, false);
  if (injected) hidden.flatten().slice(0, 0, 1).fill_(NAN);
  if (!last_stage()) {
    require_finite_step(hidden, injected ? "hidden state (a NaN was injected)" : "hidden state",
                        place);
    send_hidden(step, hidden);
    return {};
  }
  layers_.see("the projection", hidden);
  auto prediction = network_->project(step, hidden);
  require_finite_step(prediction, injected ? "prediction (a NaN was injected)" : "prediction",
                      place);
  prediction = join_parts(std::move(prediction), place);
  if (!prediction.defined()) return {};
  sample(place.step, place.patch, guide(std::move(prediction), place));
  if (step.last && (place.patch < 0 || place.patch + 1 == std::ssize(begin_.micro_steps)))
    count_skips();
  const bool needed = begin_.stage.degree > 1 && place.step + 1 < begin_.request.steps;
  send_on(needed ? gather_rows(latents_, rows).clone(at::MemoryFormat::Contiguous) : at::Tensor(),
          needed);
  return {.blobs = step_blobs(place.step, place.patch), .warnings = {}};
}

NetworkStep Job::network_step(Place place) const {
  return {.place = place,
          .items = items_of(place),
          .refill = is_refill(place.step),
          .last = place.step + 1 == begin_.request.steps};
}

at::Tensor Job::join_parts(at::Tensor prediction, Place place) {
  if (place.patch >= 0 || begin_.batch_parts.size() == 1) return prediction;
  predicted_parts_.push_back(std::move(prediction));
  if (place.part + 1 < static_cast<int>(begin_.batch_parts.size())) return {};
  auto all = at::cat(predicted_parts_);
  predicted_parts_.clear();
  return all;
}

bool Job::is_refill(int step) const {
  const auto& refills = begin_.request.refill_steps;
  return std::binary_search(refills.begin(), refills.end(), step);
}

bool Job::is_whole(int step) const {
  const auto& request = begin_.request;
  return request.method == Method::exact || step < request.warmup_steps || is_refill(step);
}

std::string Job::kind_of(int step) const {
  const char* rows = is_refill(step) ? "anew " : is_whole(step) ? "whole " : "patches ";
  return rows + network_->state(step);
}

void Job::warm_up_checks() {
  const auto& request = begin_.request;
  if (last_stage() && request.progress_interval > 0) progress_blobs(request.progress_interval - 1);
  // Of each task that is under way at an actor one answer may be outstanding, and one more.
  constexpr std::size_t kOutstanding = 8;
  finite_.reserve(kOutstanding);
}

void Job::take_latents(Place place) {
  const auto [step, patch, part] = place;
  if (begin_.stage.degree == 1 || step == begin_.first_step) return;
  if (is_whole(step - 1)) {
    // The whole picture comes at once, before the first part or patch.
    if (part == 0 && patch <= 0)
      scatter_rows(latents_, own_rows(-1), take_transfer({step, -1, 0}, stage_before()));
    return;
  }
  for (int micro = 0; micro < static_cast<int>(begin_.micro_steps.size()); ++micro) {
    const bool needed = patch < 0 ? part == 0 : micro == patch;
    if (needed)
      scatter_rows(latents_, own_rows(micro), take_transfer({step, micro, 0}, stage_before()));
  }
}

at::Tensor Job::network_input(Place place, const RowRuns& rows) {
  take_latents(place);
  const auto items = items_of(place);
  auto input =
      sampler_->scale_model_input(gather_rows(latents_, rows), place.step).to(tools_.stage.dtype());
  if (branches() == 2) input = at::cat({input, input});
  return input.slice(0, items.begin, items.end);
}

at::Tensor Job::guide(at::Tensor prediction, Place place) {
  const double scale = begin_.request.guidance_scale;
  if (!guided()) return prediction;
  at::Tensor negative;
  at::Tensor positive;
  if (begin_.cfg.degree == 1) {
    const auto halves = prediction.chunk(2);
    negative = halves[0];
    positive = halves[1];
  } else {
    prediction = prediction.contiguous();
    std::vector<at::Tensor> both{at::empty_like(prediction), at::empty_like(prediction)};
    if (prediction.numel() > 0) wait(group(begin_.groups.cfg)->all_gather(both, prediction));
    negative = both[0];
    positive = both[1];
  }
  const auto guided = negative + scale * (positive - negative);
  return begin_.request.guidance_rescale > 0 ? rescale(guided, positive, place) : guided;
}

at::Tensor Job::rescale(const at::Tensor& guided, const at::Tensor& text, Place place) {
  const bool step_before = network_->hears_a_step_later();
  const auto waves = static_cast<std::int64_t>(begin_.micro_steps.size());
  const std::int64_t side_by_side = step_before ? begin_.ring.degree : 1;
  if (!rescale_) {
    const auto sum = [this](at::Tensor& moments) {
      const auto members = group(begin_.groups.stage);
      if (!members) return;
      if (begin_.tp.rank != 0) moments.zero_();  // its rows are those of tp rank 0
      auto there = moments.to(tools_.stage.device());
      wait(members->all_reduce(there, tensor::ReduceOp::sum));
      moments = there.to(at::kCPU);
    };
    rescale_ = std::make_unique<GuidanceRescale>(
        begin_.request.guidance_rescale,
        GuidanceRescale::Shape{waves * side_by_side, images(), step_before}, sum);
  }
  std::vector<GuidanceRescale::Cut> cuts;
  for (int micro = 0; micro < static_cast<int>(waves); ++micro) {
    if (place.patch >= 0 && micro != place.patch) continue;
    const std::int64_t patch = micro * side_by_side + (step_before ? begin_.ring.rank : 0);
    const auto rows = count_rows(own_rows(micro)) * patch_size_;
    if (rows > 0) cuts.push_back({patch, rows});
  }
  return rescale_->apply(place.step, place.patch < 0, guided, text, cuts);
}

void Job::count_skips() {
  const auto use = network_->cache_use();
  if (use.skipped.empty()) return;
  auto counts = at::tensor(use.skipped, at::kLong).view({branches(), images()}).sum(0);
  if (begin_.cfg.degree == 2) {
    counts = counts.to(tools_.stage.device());
    std::vector<at::Tensor> both{at::empty_like(counts), at::empty_like(counts)};
    wait(group(begin_.groups.cfg)->all_gather(both, counts));
    counts = (both[0] + both[1]).to(at::kCPU);
  }
  const auto* count = counts.const_data_ptr<std::int64_t>();
  skipped_calls_.assign(count, count + counts.numel());
}

void Job::sample(int step, int patch, const at::Tensor& prediction) {
  const auto noise = step_noise(step);
  std::int64_t offset = 0;
  for (int micro = 0; micro < static_cast<int>(begin_.micro_steps.size()); ++micro) {
    if (patch >= 0 && micro != patch) continue;
    for (const auto& run : own_rows(micro)) {
      const auto count = (run.end - run.begin) * patch_size_;
      auto target = rows_view(latents_, run);
      const auto out = prediction.slice(2, offset, offset + count);
      auto& state = sampler_states_[micro];
      const bool clean = begin_.sampler_steps == 1 && tools_.stage.spec().one_step_is_clean;
      const auto own_noise = noise.defined() ? rows_view(noise, run) : noise;
      target.copy_(clean ? sampler_->clean(state, step, out, target, own_noise)
                         : sampler_->step(state, step, out, target, own_noise));
      offset += count;
    }
  }
}

std::string Job::place_text(Place place) const {
  const auto& load = tools_.stage.load();
  return "step " + std::to_string(place.step) +
         (place.patch >= 0 ? " patch " + std::to_string(place.patch) : std::string()) +
         (place.part > 0 ? " part " + std::to_string(place.part) : std::string()) + " stage " +
         std::to_string(begin_.stage.rank) + " (blocks " + std::to_string(load.first_block) +
         " to " + std::to_string(load.last_block - 1) + ")";
}

void Job::require_finite_step(const at::Tensor& values, const char* what, Place place) {
  const bool last_of_step = place.patch < 0 ? place.part + 1 == std::ssize(begin_.batch_parts)
                                            : place.patch + 1 == std::ssize(begin_.micro_steps);
  finite_.require(values, std::string(what) + " at " + place_text(place),
                  to_string(begin_.request.dtype), layers_);
  if (place.step + 1 < begin_.request.steps || !last_of_step) return;
  // Nobody asks again: now the host waits. That is no progress: a device that hangs shows none.
  const auto last = deadline();
  finite_.settle([&] {
    if (std::chrono::steady_clock::now() > last)
      throw std::runtime_error("[actor] the device has not come to the end of " +
                               place_text(place) + " within its deadline");
    if (tools_.progress.ended(begin_.epoch))
      throw EpochEnded("[actor] epoch " + std::to_string(begin_.epoch) + " has ended");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  });
}

void Job::require_finite(const at::Tensor& values, const std::string& what) {
  const bool finite = all_finite(values);
  finite_.read();  // the first cause comes first
  if (!finite)
    throw std::runtime_error("[actor] " + what + " is not finite, in " +
                             to_string(begin_.request.dtype));
}

}  // namespace troupe::actors
