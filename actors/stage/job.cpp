#include "actors/stage/job.h"

namespace troupe::actors {

StageJob::StageJob(wire::BeginJob begin, const JobTools& tools, const JobInputs& inputs)
    : context_(std::move(begin), tools),
      latents_(context_, inputs.init_latents, inputs.boundary),
      control_(context_, inputs.control_images),
      network_(begin_network()),
      transfers_(context_, latents_, *network_),
      step_(context_, latents_, *network_, transfers_),
      text_(context_, *network_, {context_, latents_, inputs.init_image, inputs.mask_image},
            {context_, latents_, {inputs.init_image, inputs.mask_image, inputs.control_image}},
            {context_, inputs.images}, {context_, latents_, inputs.frames}, inputs.prompt_embeds),
      decoder_(context_, latents_, transfers_, step_) {
  // For each task under way at an actor one answer may be outstanding, and one more. Each job has
  // blocks of its own: those of other jobs are still in use.
  constexpr std::size_t kAnswers = 8;
  context_.finite.reserve(kAnswers);
}

std::unique_ptr<JobNetwork> StageJob::begin_network() {
  return context_.tools.stage.network().begin(
      {.begin = context_.begin,
       .sampler = latents_.sampler(),
       .size = context_.size,
       .references = context_.references,
       .prompt_tokens = context_.prompt_tokens,
       .images = context_.images(),
       .branches = context_.branches(),
       .wait = [this](const tensor::Work& work) { context_.waits.wait(work); },
       .group = [this](std::uint32_t id) { return context_.group(id); },
       .tick = [this] { context_.tick(); },
       .await_device = [this] { context_.waits.await_device(); },
       .control_picture = [this](std::size_t number) { return control_.take(number); },
       .layers = context_.layers,
       .graphs = context_.tools.cuda_graphs});
}

TaskResult StageJob::micro_step(StepPlace place) {
  if (!step_.run(place) || !context_.ends_step(place)) return {};
  TaskResult result{decoder_.previews(place.step), {}, latents_.sampler().timestep(place.step)};
  if (auto boundary = latents_.publish_boundary()) result.blobs.push_back(std::move(*boundary));
  return result;
}

void StageJob::warm_up_previews() {
  const auto interval = begin().request.progress_interval;
  if (context_.last_stage() && interval > 0) decoder_.previews(interval - 1);
}

std::vector<std::pair<std::string, at::Tensor>> StageJob::tensors() const {
  auto named = latents_.tensors();
  for (auto& tensor : network_->tensors())
    named.push_back(std::move(tensor));
  for (auto& tensor : transfers_.tensors())
    named.push_back(std::move(tensor));
  return named;
}

}  // namespace troupe::actors
