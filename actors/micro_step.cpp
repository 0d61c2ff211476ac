#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>

#include "actors/job.h"
#include "actors/live_attention.h"

namespace troupe::actors {

TaskResult Job::micro_step(int step, int patch) {
  const auto rows = rows_of(patch);
  at::Tensor hidden = first_stage() ? embed_patch(step, patch, rows) : take_transfer(step, patch);
  hidden = run_blocks(std::move(hidden), step, rows);
  if (!last_stage()) {
    require_finite(hidden, "hidden state at " + place_text(step, patch));
    send_on(hidden, true);
    return {};
  }
  auto prediction =
      tools_.stage.transformer().project(hidden, *condition_, size_, rows).to(at::kFloat);
  require_finite(prediction, "prediction at " + place_text(step, patch));
  sample(step, rows, guide(std::move(prediction)));
  const bool needed = begin_.stages > 1 && step + 1 < begin_.request.steps;
  send_on(needed ? rows_view(latents_, rows).clone(at::MemoryFormat::Contiguous) : at::Tensor(),
          needed);
  return {.blobs = progress_blobs(step, patch), .warnings = {}};
}

at::Tensor Job::embed_patch(int step, int patch, models::TokenRows rows) {
  if (begin_.stages > 1 && step > 0) {
    // After the last synchronous step the whole picture comes at once, before the first patch.
    const bool after_whole = patch >= 0 && step == begin_.request.warmup_steps;
    if (after_whole && patch == 0) latents_.copy_(take_transfer(step, -1));
    if (!after_whole) rows_view(latents_, rows).copy_(take_transfer(step, patch));
  }
  auto input =
      sampler_->scale_model_input(rows_view(latents_, rows), step).to(tools_.stage.dtype());
  if (branches() == 2) input = at::cat({input, input});
  return tools_.stage.transformer().embed(input, size_, rows);
}

at::Tensor Job::run_blocks(at::Tensor hidden, int step, models::TokenRows rows) {
  if (!caption_) throw std::logic_error("[actor] a micro-step came before the text");
  const auto& transformer = tools_.stage.transformer();
  if (condition_step_ != step) {
    condition_ = transformer.condition(sampler_->timestep(step), images() * branches(), size_);
    condition_step_ = step;
  }
  if (stale_kv_) stale_kv_->begin(rows.begin * columns_, rows.end * columns_);
  LiveAttention attention(*attention_, [this] { tools_.progress.tick_in(begin_.epoch); });
  return transformer.run_blocks(std::move(hidden), *condition_, *caption_, attention);
}

at::Tensor Job::guide(at::Tensor prediction) {
  const double scale = begin_.request.guidance_scale;
  if (scale <= 1) return prediction;
  at::Tensor negative;
  at::Tensor positive;
  if (begin_.cfg_degree == 1) {
    const auto halves = prediction.chunk(2);
    negative = halves[0];
    positive = halves[1];
  } else {
    prediction = prediction.contiguous();
    std::vector<at::Tensor> both{at::empty_like(prediction), at::empty_like(prediction)};
    wait(tools_.groups.get(begin_.epoch, begin_.cfg_group)->all_gather(both, prediction));
    negative = both[0];
    positive = both[1];
  }
  return negative + scale * (positive - negative);
}

void Job::sample(int step, models::TokenRows rows, const at::Tensor& prediction) {
  for (std::size_t patch = 0; patch < begin_.patches.size(); ++patch) {
    const models::TokenRows own{begin_.patches[patch].begin, begin_.patches[patch].end};
    if (own.begin < rows.begin || own.end > rows.end) continue;
    const models::TokenRows within{own.begin - rows.begin, own.end - rows.begin};
    auto target = rows_view(latents_, own);
    const auto out = rows_view(prediction, within);
    // As in diffusers' PixArt pipeline, a single step ends at the clean picture.
    target.copy_(begin_.request.steps == 1
                     ? sampler_->clean(sampler_states_[patch], step, out, target)
                     : sampler_->step(sampler_states_[patch], step, out, target));
  }
}

std::string Job::place_text(int step, int patch) const {
  const auto& load = tools_.stage.load();
  return "step " + std::to_string(step) +
         (patch >= 0 ? " patch " + std::to_string(patch) : std::string()) + " stage " +
         std::to_string(begin_.stage) + " (blocks " + std::to_string(load.first_block) + " to " +
         std::to_string(load.last_block - 1) + ")";
}

void Job::require_finite(const at::Tensor& values, const std::string& what) const {
  if (std::isfinite(values.sum(at::kFloat).item<float>())) return;
  if (at::isfinite(values).all().item<bool>()) return;  // only the sum overflowed
  throw std::runtime_error("[actor] " + what + " is not finite, in " + begin_.request.dtype);
}

}  // namespace troupe::actors
