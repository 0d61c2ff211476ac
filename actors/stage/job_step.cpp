#include "actors/stage/job_step.h"

#include <ATen/ATen.h>

#include <cmath>
#include <utility>

#include "models/dit/transformer_parts.h"

namespace troupe::actors {
namespace {

enum { kCount, kText, kTextSquares, kGuided, kGuidedSquares, kMoments };

at::Tensor deviation(const at::Tensor& moments, int sum, int squares) {
  const at::Tensor count = moments.select(-1, kCount), total = moments.select(-1, sum);
  return ((moments.select(-1, squares) - total * total / count) / (count - 1)).sqrt();
}

/// Returns `guided` with the length that each token has in `text`, by the rule; both [n, C, rows ·
/// patch, w].
at::Tensor renormed(const at::Tensor& guided, const at::Tensor& text, std::int64_t patch,
                    spec::GuidanceRenorm rule) {
  if (guided.numel() == 0) return guided;
  const auto length = [&](const at::Tensor& of) {
    return at::linalg_vector_norm(of, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  };
  const auto tokens = models::tokens_of_latents(guided, patch);
  const auto own = models::tokens_of_latents(text, patch);
  // Source: QwenImagePipeline; LongCatImagePipeline with enable_cfg_renorm and its cfg_renorm_min.
  const auto factor = rule == spec::GuidanceRenorm::shorten
                          ? (length(own) / (length(tokens) + 1e-8)).clamp(0, 1)
                          : length(own) / length(tokens);
  return models::latents_of_tokens(tokens * factor, guided.size(3) / patch, patch,
                                   models::TokenOrder::channels_first);
}

}  // namespace

GuidanceRescale::GuidanceRescale(double phi, Shape shape, Sum sum)
    : phi_(phi),
      shape_(shape),
      sum_(std::move(sum)),
      newest_(at::zeros({shape.patches, shape.images, kMoments}, at::kDouble)),
      before_(newest_.clone()) {}

at::Tensor GuidanceRescale::apply(int step, bool whole, const at::Tensor& guided,
                                  const at::Tensor& text, const std::vector<Cut>& cuts) {
  if (std::exchange(step_, step) != step) before_ = newest_.clone();
  at::Tensor fresh = at::zeros_like(newest_);
  std::int64_t row = 0;
  for (const Cut& cut : cuts) {
    const auto values = [&](const at::Tensor& of) {
      return of.slice(2, row, row + cut.rows).flatten(1).to(at::kDouble);
    };
    const at::Tensor own_text = values(text), own_guided = values(guided);
    at::Tensor moments = fresh.select(0, cut.patch);
    moments.select(-1, kCount).add_(static_cast<double>(own_text.size(1)));
    moments.select(-1, kText).add_(own_text.sum(1).cpu());
    moments.select(-1, kTextSquares).add_(own_text.square().sum(1).cpu());
    moments.select(-1, kGuided).add_(own_guided.sum(1).cpu());
    moments.select(-1, kGuidedSquares).add_(own_guided.square().sum(1).cpu());
    row += cut.rows;
  }
  sum_(fresh);
  const at::Tensor computed = fresh.select(-1, kCount).gt(0).unsqueeze(-1);
  newest_ = at::where(computed, fresh, newest_);
  std::vector<at::Tensor> parts;
  row = 0;
  for (const Cut& cut : cuts) {
    at::Tensor counted = newest_;
    if (shape_.step_before && !whole) {
      counted = before_.clone();
      counted.select(0, cut.patch).copy_(fresh.select(0, cut.patch));
    }
    const at::Tensor all = counted.sum(0);
    const at::Tensor factor =
        deviation(all, kText, kTextSquares) / deviation(all, kGuided, kGuidedSquares);
    const at::Tensor own = guided.slice(2, row, row + cut.rows);
    const at::Tensor scale =
        (phi_ * factor + (1 - phi_)).to(guided.device(), at::kFloat).view({-1, 1, 1, 1});
    parts.push_back(own * scale);
    row += cut.rows;
  }
  if (parts.empty()) return guided;
  return parts.size() == 1 ? parts.front() : at::cat(parts, 2);
}

bool JobStep::run(StepPlace place) {
  const auto rows = job_.own_rows(place.patch);
  const auto step = job_.network_step(place);
  job_.layers.begin();
  at::Tensor hidden;
  if (job_.first_stage()) {
    transfers_.take_latents(place);
    hidden = network_.embed(step, input(step, rows));
  } else {
    hidden = transfers_.take_hidden(step);
  }
  hidden = network_.run(step, std::move(hidden));
  job_.tools.stage.check_streamed();
  const bool injected = std::exchange(poisoned_, false);
  if (injected) hidden.flatten().slice(0, 0, 1).fill_(NAN);
  if (!job_.last_stage()) {
    require_finite(hidden, injected ? "hidden state (a NaN was injected)" : "hidden state", step);
    transfers_.send_hidden(step, hidden);
    return false;
  }
  job_.layers.see("the projection", hidden);
  auto prediction = network_.project(step, hidden);
  require_finite(prediction, injected ? "prediction (a NaN was injected)" : "prediction", step);
  prediction = join_parts(std::move(prediction), place);
  if (!prediction.defined()) return false;
  latents_.sample(place.step, place.patch, guide(std::move(prediction), place));
  if (step.last && job_.ends_step(place)) count_skips();
  transfers_.send_latents(step, rows);
  return true;
}

at::Tensor JobStep::input(const NetworkStep& step, const RowRuns& rows) const {
  auto input = latents_.input(step.place.step, rows);
  if (job_.branches() == 2) input = at::cat({input, input});
  return input.slice(0, step.items.begin, step.items.end);
}

at::Tensor JobStep::join_parts(at::Tensor prediction, StepPlace place) {
  if (place.patch >= 0 || job_.begin.batch_parts.size() == 1) return prediction;
  predicted_parts_.push_back(std::move(prediction));
  if (!job_.ends_step(place)) return {};
  return at::cat(std::exchange(predicted_parts_, {}));
}

at::Tensor JobStep::guide(at::Tensor prediction, StepPlace place) {
  const auto& begin = job_.begin;
  const bool second = job_.tools.stage.spec().is_of_second(latents_.sampler().timestep(place.step));
  const auto& request = begin.request;
  const double scale = (second ? request.guidance_scale_2 : request.guidance_scale).value();
  if (!job_.guided()) return prediction;
  at::Tensor negative;
  at::Tensor positive;
  if (begin.cfg.degree == 1) {
    const auto halves = prediction.chunk(2);
    negative = halves[0];
    positive = halves[1];
  } else {
    prediction = prediction.contiguous();
    std::vector<at::Tensor> both{at::empty_like(prediction), at::empty_like(prediction)};
    if (prediction.numel() > 0)
      job_.waits.wait(job_.group(begin.groups.cfg)->all_gather(both, prediction));
    negative = both[0];
    positive = both[1];
  }
  const auto& from = job_.tools.stage.spec().adds_guidance ? positive : negative;
  const auto guided = from + scale * (positive - negative);
  const auto renorm = job_.tools.stage.spec().renorm;
  if (renorm != spec::GuidanceRenorm::none)
    return renormed(guided, positive, job_.patch_size, renorm);
  return begin.request.guidance_rescale > 0 ? rescale(guided, positive, place) : guided;
}

at::Tensor JobStep::rescale(const at::Tensor& guided, const at::Tensor& text, StepPlace place) {
  const auto& begin = job_.begin;
  const bool step_before = network_.is_asynchronous();
  const std::int64_t waves = job_.micro_steps();
  const std::int64_t side_by_side = step_before ? begin.ring.degree : 1;
  if (!rescale_) {
    const auto sum = [this](at::Tensor& moments) {
      const auto members = job_.group(job_.begin.groups.stage);
      if (!members) return;
      if (job_.begin.tp.rank != 0) moments.zero_();  // its rows are those of tp rank 0
      auto there = moments.to(job_.tools.stage.device());
      job_.waits.wait(members->all_reduce(there, tensor::ReduceOp::sum));
      job_.waits.await_device();
      moments = there.to(at::kCPU);
    };
    rescale_ = std::make_unique<GuidanceRescale>(
        begin.request.guidance_rescale,
        GuidanceRescale::Shape{waves * side_by_side, job_.images(), step_before}, sum);
  }
  std::vector<GuidanceRescale::Cut> cuts;
  for (int micro = 0; micro < static_cast<int>(waves); ++micro) {
    if (place.patch >= 0 && micro != place.patch) continue;
    const std::int64_t patch = micro * side_by_side + (step_before ? begin.ring.rank : 0);
    const auto rows = count_rows(job_.own_rows(micro)) * job_.patch_size;
    if (rows > 0) cuts.push_back({patch, rows});
  }
  job_.waits.await_device();
  return rescale_->apply(place.step, place.patch < 0, guided, text, cuts);
}

void JobStep::count_skips() {
  const auto use = network_.cache_use();
  if (use.skipped.empty()) return;
  auto counts = at::tensor(use.skipped, at::kLong).view({job_.branches(), job_.images()}).sum(0);
  if (job_.begin.cfg.degree == 2) {
    counts = counts.to(job_.tools.stage.device());
    std::vector<at::Tensor> both{at::empty_like(counts), at::empty_like(counts)};
    job_.waits.wait(job_.group(job_.begin.groups.cfg)->all_gather(both, counts));
    job_.waits.await_device();
    counts = (both[0] + both[1]).to(at::kCPU);
  }
  const auto* count = counts.const_data_ptr<std::int64_t>();
  skipped_calls_.assign(count, count + counts.numel());
}

CacheUse JobStep::cache_use() const {
  const bool counts = job_.first_stage() && job_.sequence_rank() == 0 && job_.begin.tp.rank == 0;
  return counts ? network_.cache_use() : CacheUse{};
}

std::optional<JobStep::PictureCalls> JobStep::calls_of(std::int64_t picture) const {
  if (skipped_calls_.empty()) return std::nullopt;
  const auto branches = job_.guided() ? 2 : 1;
  return PictureCalls{network_.cache_use().calls * branches, skipped_calls_.at(picture)};
}

void JobStep::require_finite(const at::Tensor& values, const char* what, const NetworkStep& step) {
  job_.finite.require(values, std::string(what) + " at " + job_.describe(step.place),
                      to_string(job_.begin.request.dtype), job_.layers);
  // Nobody asks again after the last one: then the host waits.
  if (step.last && job_.ends_step(step.place)) job_.finite.settle(job_.waits.pause_for_device());
}

}  // namespace troupe::actors
