#include "actors/stage/job_context.h"

#include <utility>

namespace troupe::actors {

models::PictureSize latent_size(const spec::ModelSpec& spec, const wire::ImageRequest& request) {
  models::PictureSize size;
  size.frames = spec.latent_frames(request.num_frames);
  size.latent_height = size.frames * request.height / spec.vae.scale_factor();
  size.latent_width = request.width / spec.vae.scale_factor();
  return size;
}

JobContext::JobContext(wire::BeginJob message, const JobTools& given)
    : begin(std::move(message)),
      tools(given),
      patch_size(tools.stage.spec().transformer.patch_size),
      channels(tools.stage.spec().transformer.in_channels),
      size(latent_size(tools.stage.spec(), begin.request)),
      waits(tools.progress, begin.epoch, tools.transfer_deadline, tools.clock),
      blobs(tools.blobs),
      finite(tools.stage.device(), tools.not_finite) {}

bool JobContext::guided() const {
  return tools.stage.spec().has_branches(begin.request.guidance_scale.value());
}

std::int64_t JobContext::branches() const {
  return guided() && begin.cfg.degree == 1 ? 2 : 1;
}

bool JobContext::ends_step(StepPlace place) const {
  return place.patch < 0 ? place.part + 1 == std::ssize(begin.batch_parts)
                         : place.patch + 1 == micro_steps();
}

NetworkStep JobContext::network_step(StepPlace place) const {
  const auto all = wire::RowRange{0, static_cast<std::int32_t>(images() * branches())};
  return {.place = place,
          .items = place.patch < 0 ? begin.batch_parts.at(place.part) : all,
          .refill = begin.steps.at(place.step) == wire::StepKind::refill,
          .last = place.step + 1 == begin.request.steps};
}

std::string JobContext::describe(StepPlace place) const {
  const auto& load = tools.stage.load();
  return "step " + std::to_string(place.step) +
         (place.patch >= 0 ? " patch " + std::to_string(place.patch) : std::string()) +
         (place.part > 0 ? " part " + std::to_string(place.part) : std::string()) + " stage " +
         std::to_string(begin.stage.rank) + " (blocks " + std::to_string(load.first_block) +
         " to " + std::to_string(load.last_block - 1) + ")";
}

std::vector<std::int64_t> JobContext::latent_shape(const RowRuns& rows) const {
  return {images(), channels, count_rows(rows) * patch_size, size.latent_width};
}

void JobContext::require_finite(const at::Tensor& values, const std::string& what) {
  waits.await_device();
  finite.require_now(values, what, to_string(begin.request.dtype));
}

std::shared_ptr<tensor::Group> JobContext::group(std::uint32_t id) const {
  return id == 0 ? nullptr : tools.groups.get(begin.epoch, id);
}

}  // namespace troupe::actors
