#include "actors/stage/beside_latents.h"

#include <ATen/ATen.h>

#include "actors/stage/encode_picture.h"
#include "models/image/resize.h"

namespace troupe::actors {

void BesideLatents::encode() {
  if (job_.begin.vae.degree == 0) return;
  switch (job_.beside()) {
    case spec::BesideLatents::none:
    case spec::BesideLatents::given_frames:
      return;
    case spec::BesideLatents::masked_picture_and_pixels:
    case spec::BesideLatents::mask_and_masked_picture:
      encoded_ = encode_masked();
      break;
    case spec::BesideLatents::control_picture:
      encoded_ = encode_control();
      break;
  }
  if (encoded_.defined()) job_.require_finite(encoded_, "encoded picture");
}

at::Tensor BesideLatents::encode_masked() {
  const auto& request = job_.begin.request;
  const spec::PixelSize size{request.height, request.width};
  const auto painted = models::painted_pixels(read_resized(job_, files_.mask, "the mask", size));
  const auto kept = models::to_model_range(
                        read_resized(job_, files_.picture, "the picture to begin with", size)) *
                    (1 - painted);
  const auto latents = encode_together(job_, kept, latents_.beside_noise());
  if (!latents.defined()) return {};
  const auto scale = request.height / job_.size.latent_height;
  const auto repeated = [&](const at::Tensor& mask) {
    return mask.to(latents.device()).expand({latents.size(0), -1, -1, -1});
  };
  if (job_.beside() == spec::BesideLatents::masked_picture_and_pixels)
    return at::cat({latents, repeated(at::pixel_unshuffle(painted, scale))}, 1);
  const auto first = painted.slice(2, 0, at::nullopt, scale).slice(3, 0, at::nullopt, scale);
  return at::cat({repeated(first), latents}, 1);
}

at::Tensor BesideLatents::encode_control() {
  const auto& request = job_.begin.request;
  const auto pixels = models::to_model_range(
      read_resized(job_, files_.control, "the control picture", {request.height, request.width}));
  return encode_together(job_, pixels, latents_.beside_noise());
}

bool BesideLatents::makes_them() const {
  return job_.beside() != spec::BesideLatents::none &&
         job_.beside() != spec::BesideLatents::given_frames;
}

at::Tensor BesideLatents::zeros() const {
  const auto channels = job_.tools.stage.spec().transformer.beside_channels;
  return at::zeros(
      {latents_.beside_count(), channels, job_.size.latent_height, job_.size.latent_width},
      at::TensorOptions().dtype(at::kFloat).device(job_.tools.stage.device()));
}

void BesideLatents::keep_blank() {
  if (makes_them()) latents_.put_beside(zeros());
}

void BesideLatents::share() {
  if (!makes_them()) return;
  const auto channels =
      encoded_.defined() ? encoded_.to(job_.tools.stage.device()).contiguous() : zeros();
  encoded_ = at::Tensor();
  if (const auto replica = job_.group(job_.begin.groups.caption))
    job_.waits.wait(replica->broadcast(channels, job_.begin.image_root));
  latents_.put_beside(channels);
}

}  // namespace troupe::actors
