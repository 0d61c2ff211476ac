#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "actors/job.h"
#include "actors/live_attention.h"

namespace troupe::actors {

TaskResult Job::micro_step(Place place) {
  const auto rows = own_rows(place.patch);
  at::Tensor hidden = first_stage() ? embed_patch(place, rows) : take_transfer(place);
  hidden = run_blocks(std::move(hidden), place);
  if (std::exchange(poisoned_, false)) hidden.flatten().slice(0, 0, 1).fill_(NAN);
  if (!last_stage()) {
    require_finite(hidden, "hidden state at " + place_text(place));
    send_on(hidden, true);
    return {};
  }
  auto prediction = project(hidden.slice(1, own_text(place.patch).size()), rows);
  require_finite(prediction, "prediction at " + place_text(place));
  prediction = join_parts(std::move(prediction), place);
  if (!prediction.defined()) return {};
  sample(place.step, place.patch, guide(std::move(prediction)));
  const bool needed = begin_.stage.degree > 1 && place.step + 1 < begin_.request.steps;
  send_on(needed ? gather_rows(latents_, rows).clone(at::MemoryFormat::Contiguous) : at::Tensor(),
          needed);
  return {.blobs = step_blobs(place.step, place.patch), .warnings = {}};
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
  return request.method == "exact" || step < request.warmup_steps || is_refill(step);
}

void Job::take_latents(Place place) {
  const auto [step, patch, part] = place;
  if (begin_.stage.degree == 1 || step == begin_.first_step) return;
  if (is_whole(step - 1)) {
    // The whole picture comes at once, before the first part or patch.
    if (part == 0 && patch <= 0) scatter_rows(latents_, own_rows(-1), take_transfer({step, -1, 0}));
    return;
  }
  for (int micro = 0; micro < static_cast<int>(begin_.micro_steps.size()); ++micro) {
    const bool needed = patch < 0 ? part == 0 : micro == patch;
    if (needed) scatter_rows(latents_, own_rows(micro), take_transfer({step, micro, 0}));
  }
}

at::Tensor Job::embed_patch(Place place, const RowRuns& rows) {
  const int step = place.step;
  take_latents(place);
  const auto items = items_of(place);
  const auto& transformer = tools_.stage.transformer();
  std::vector<at::Tensor> tokens;
  if (const auto text = own_text(place.patch); text.size() > 0)
    tokens.push_back(transformer.embed_text(*caption_of(items), text.begin, text.end));
  for (const auto& run : rows) {
    auto input =
        sampler_->scale_model_input(rows_view(latents_, run), step).to(tools_.stage.dtype());
    if (branches() == 2) input = at::cat({input, input});
    input = input.slice(0, items.begin, items.end);
    tokens.push_back(transformer.embed(input, size_, run));
  }
  if (tokens.size() == 1) return tokens.front();
  if (!tokens.empty()) return at::cat(tokens, 1);
  return at::empty({items.end - items.begin, 0, transformer.hidden_width()},
                   at::TensorOptions().dtype(tools_.stage.dtype()).device(tools_.stage.device()));
}

at::Tensor Job::run_blocks(at::Tensor hidden, Place place) {
  const auto& transformer = tools_.stage.transformer();
  const auto items = items_of(place);
  const auto caption = caption_of(items);
  if (condition_of_ != std::pair{place.step, items}) {
    condition_ = transformer.condition(
        {sampler_->timestep(place.step), begin_.request.guidance_scale, size_}, *caption);
    condition_of_ = {place.step, items};
  }
  std::vector<models::TokenRuns> tokens;
  for (int rank = 0; rank < sequence_degree(); ++rank) {
    const auto text = text_of(place.patch, rank);
    const auto rows = rows_of(begin_.micro_steps, place.patch, rank);
    tokens.push_back(tokens_of(rows, columns_, text_tokens(), {text.begin, text.end}));
  }
  if (is_refill(place.step) && place.part == 0) attention_->forget();
  attention_->begin(tokens, place.step, place.patch < 0, place.step + 1 == begin_.request.steps,
                    items.begin, text_tokens());
  LiveAttention attention(*attention_, [this] { tools_.progress.tick_in(begin_.epoch); });
  const auto text = own_text(place.patch);
  const models::CallTokens call{size_, own_rows(place.patch), text.begin, text.end};
  return transformer.run_blocks(std::move(hidden), call, *condition_, *caption, attention, *sums_);
}

std::shared_ptr<const models::CaptionCache> Job::caption_of(wire::RowRange items) const {
  if (!caption_) throw std::logic_error("[actor] a micro-step came before the text");
  if (items.end - items.begin == caption_->batch()) return caption_;
  return caption_->items(items.begin, items.end);
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
  return negative + scale * (positive - negative);
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
      const bool clean = begin_.request.steps == 1 && tools_.stage.spec().one_step_is_clean;
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

void Job::require_finite(const at::Tensor& values, const std::string& what) const {
  if (values.numel() == 0) return;
  if (std::isfinite(values.sum(at::kFloat).item<float>())) return;
  if (at::isfinite(values).all().item<bool>()) return;  // only the sum overflowed
  throw std::runtime_error("[actor] " + what + " is not finite, in " + begin_.request.dtype);
}

}  // namespace troupe::actors
