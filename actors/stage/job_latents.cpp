#include <ATen/ATen.h>

#include <algorithm>

#include "actors/stage/job.h"

// What a job's latents begin with, what noise is added to them, and what is left of them for
// others.

namespace troupe::actors {

NoiseSource Job::make_noise() const {
  const auto& request = begin_.request;
  const auto pictures =
      static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
  const auto type = request.noise_dtype == NoiseType::model ? tools_.stage.dtype() : at::kFloat;
  const std::vector<std::int64_t> shape{pictures, channels_, size_.latent_height,
                                        size_.latent_width};
  if (!request.seeds.empty()) return {request.seeds, shape, type};
  return {request.seed, shape, type};
}

void Job::draw_latents(const at::Tensor& init_latents) {
  if (starts_from_picture()) {
    latents_ = at::zeros({images(), channels_, size_.latent_height, size_.latent_width},
                         at::TensorOptions().dtype(at::kFloat).device(tools_.stage.device()));
    return;
  }
  const auto noise = init_latents.defined() ? init_latents : make_noise().draw();
  latents_ = (noise.slice(0, begin_.first_image, begin_.last_image) * sampler_->init_noise_sigma())
                 .to(tools_.stage.device())
                 .contiguous();
}

at::Tensor Job::step_noise(int step) {
  if (!sampler_->noise_needed(step)) return {};
  if (!noise_) {
    noise_ = make_noise();
    if (begin_.request.init_image_bytes > 0) noise_->draw(1);
    if (begin_.request.init_latents_blob == 0) noise_->draw();  // what the latents began with
  }
  while (noise_step_ < step) {
    if (!sampler_->noise_needed(++noise_step_)) continue;
    const auto drawn = noise_->draw();
    if (noise_step_ == step)
      step_noise_ = drawn.slice(0, begin_.first_image, begin_.last_image).to(tools_.stage.device());
  }
  return step_noise_;
}

void Job::restore_histories(const at::Tensor& boundary) {
  for (int micro = 0; micro < static_cast<int>(begin_.micro_steps.size()); ++micro) {
    const auto rows = own_rows(micro);
    if (rows.empty()) continue;
    for (std::int64_t i = 1; i < boundary.size(0); ++i) {
      sampler_states_[micro].history.push_back(
          gather_rows(boundary[i].to(latents_.device()), rows).contiguous());
    }
  }
}

wire::BlobRef Job::publish(const std::string& name, std::string bytes,
                           std::vector<std::int64_t> shape) {
  wire::BlobRef ref{.name = name, .id = 0, .bytes = bytes.size(), .shape = std::move(shape)};
  ref.id = tools_.blobs.add(std::move(bytes));
  published_.push_back(ref.id);
  return ref;
}

wire::BlobRef Job::keep_newest(std::deque<control::BlobId>& kind, wire::BlobRef blob) {
  constexpr std::size_t kKept = 4;
  // Each job of a batch has previews of its own.
  const std::size_t at_once = &kind == &interim_ ? begin_.request.seeds.size() : 1;
  kind.push_back(blob.id);
  if (kind.size() > kKept * std::max<std::size_t>(1, at_once)) {
    tools_.blobs.remove(kind.front());
    std::erase(published_, kind.front());
    kind.pop_front();
  }
  return blob;
}

std::optional<wire::BlobRef> Job::publish_boundary() {
  const auto rows = own_rows(-1);
  if (begin_.cfg.rank != 0 || begin_.tp.rank != 0 || rows.empty()) return std::nullopt;
  std::vector<at::Tensor> parts{gather_rows(latents_, rows)};
  std::size_t history = 0;
  for (const auto& state : sampler_states_)
    history = std::max(history, state.history.size());
  for (std::size_t i = 0; i < history; ++i) {
    std::vector<at::Tensor> of_rows;
    for (int micro = 0; micro < static_cast<int>(begin_.micro_steps.size()); ++micro) {
      if (!own_rows(micro).empty()) of_rows.push_back(sampler_states_[micro].history.at(i));
    }
    parts.push_back(at::cat(of_rows, 2));
  }
  const auto all = at::stack(parts).to(at::kCPU, at::kFloat).contiguous();
  finite_.read();  // the host has waited: answers about what led to these rows are here
  std::string bytes(static_cast<const char*>(all.const_data_ptr()), all.nbytes());
  return keep_newest(boundaries_, publish("boundary", std::move(bytes), all.sizes().vec()));
}

wire::BlobRef Job::publish_latents() {
  const auto host = latents_.to(at::kCPU).contiguous();
  std::string bytes(static_cast<const char*>(host.const_data_ptr()), host.nbytes());
  return publish("latents", std::move(bytes), host.sizes().vec());
}

}  // namespace troupe::actors
