#include <ATen/ATen.h>

#include <cmath>
#include <stdexcept>

#include "actors/job.h"
#include "actors/live_attention.h"

namespace troupe::actors {

TaskResult Job::micro_step(int step, int patch) {
  const auto rows = own_rows(patch);
  at::Tensor hidden = first_stage() ? embed_patch(step, patch, rows) : take_transfer(step, patch);
  hidden = run_blocks(std::move(hidden), step, patch);
  if (!last_stage()) {
    require_finite(hidden, "hidden state at " + place_text(step, patch));
    send_on(hidden, true);
    return {};
  }
  auto prediction = project(hidden, rows);
  require_finite(prediction, "prediction at " + place_text(step, patch));
  sample(step, patch, guide(std::move(prediction)));
  const bool needed = begin_.stage.degree > 1 && step + 1 < begin_.request.steps;
  send_on(needed ? gather_rows(latents_, rows).clone(at::MemoryFormat::Contiguous) : at::Tensor(),
          needed);
  return {.blobs = progress_blobs(step, patch), .warnings = {}};
}

at::Tensor Job::embed_patch(int step, int patch, const RowRuns& rows) {
  if (begin_.stage.degree > 1 && step > 0) {
    // After the last synchronous step the whole picture comes at once, before the first patch.
    const bool after_whole = patch >= 0 && step == begin_.request.warmup_steps;
    if (after_whole && patch == 0) scatter_rows(latents_, own_rows(-1), take_transfer(step, -1));
    if (!after_whole) scatter_rows(latents_, rows, take_transfer(step, patch));
  }
  const auto& transformer = tools_.stage.transformer();
  std::vector<at::Tensor> tokens;
  for (const auto& run : rows) {
    auto input =
        sampler_->scale_model_input(rows_view(latents_, run), step).to(tools_.stage.dtype());
    if (branches() == 2) input = at::cat({input, input});
    tokens.push_back(transformer.embed(input, size_, run));
  }
  if (tokens.size() == 1) return tokens.front();
  if (!tokens.empty()) return at::cat(tokens, 1);
  return at::empty({images() * branches(), 0, transformer.hidden_width()},
                   at::TensorOptions().dtype(tools_.stage.dtype()).device(tools_.stage.device()));
}

at::Tensor Job::run_blocks(at::Tensor hidden, int step, int patch) {
  if (!caption_) throw std::logic_error("[actor] a micro-step came before the text");
  const auto& transformer = tools_.stage.transformer();
  if (condition_step_ != step) {
    condition_ = transformer.condition(sampler_->timestep(step), images() * branches(), size_);
    condition_step_ = step;
  }
  std::vector<models::TokenRuns> tokens;
  for (int rank = 0; rank < sequence_degree(); ++rank)
    tokens.push_back(tokens_of(rows_of(begin_.micro_steps, patch, rank), columns_));
  attention_->begin(tokens, step, patch < 0, step + 1 == begin_.request.steps);
  LiveAttention attention(*attention_, [this] { tools_.progress.tick_in(begin_.epoch); });
  return transformer.run_blocks(std::move(hidden), *condition_, *caption_, attention, *sums_);
}

at::Tensor Job::project(const at::Tensor& hidden, const RowRuns& rows) const {
  std::vector<at::Tensor> parts;
  std::int64_t offset = 0;
  for (const auto& run : rows) {
    const auto count = (run.end - run.begin) * columns_;
    const auto part = hidden.slice(1, offset, offset + count);
    parts.push_back(
        tools_.stage.transformer().project(part, *condition_, size_, run).to(at::kFloat));
    offset += count;
  }
  if (parts.size() == 1) return parts.front();
  if (!parts.empty()) return at::cat(parts, 2);
  return at::empty({images() * branches(), channels_, 0, size_.latent_width}, latents_.options());
}

at::Tensor Job::guide(at::Tensor prediction) {
  const double scale = begin_.request.guidance_scale;
  if (scale <= 1) return prediction;
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
  return negative + scale * (positive - negative);
}

void Job::sample(int step, int patch, const at::Tensor& prediction) {
  std::int64_t offset = 0;
  for (int micro = 0; micro < static_cast<int>(begin_.micro_steps.size()); ++micro) {
    if (patch >= 0 && micro != patch) continue;
    for (const auto& run : own_rows(micro)) {
      const auto count = (run.end - run.begin) * patch_size_;
      auto target = rows_view(latents_, run);
      const auto out = prediction.slice(2, offset, offset + count);
      auto& state = sampler_states_[micro];
      // As in diffusers' PixArt pipeline, a single step ends at the clean picture.
      target.copy_(begin_.request.steps == 1 ? sampler_->clean(state, step, out, target)
                                             : sampler_->step(state, step, out, target));
      offset += count;
    }
  }
}

std::string Job::place_text(int step, int patch) const {
  const auto& load = tools_.stage.load();
  return "step " + std::to_string(step) +
         (patch >= 0 ? " patch " + std::to_string(patch) : std::string()) + " stage " +
         std::to_string(begin_.stage.rank) + " (blocks " + std::to_string(load.first_block) +
         " to " + std::to_string(load.last_block - 1) + ")";
}

void Job::require_finite(const at::Tensor& values, const std::string& what) const {
  if (values.numel() == 0) return;
  if (std::isfinite(values.sum(at::kFloat).item<float>())) return;
  if (at::isfinite(values).all().item<bool>()) return;  // only the sum overflowed
  throw std::runtime_error("[actor] " + what + " is not finite, in " + begin_.request.dtype);
}

}  // namespace troupe::actors
