#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "actors/parallel/halo_exchange.h"
#include "actors/stage/job.h"
#include "models/image/png.h"
#include "models/image/resize_lanczos.h"
#include "models/vae/row_shards.h"

// What the text task does where a job begins with a picture.

namespace troupe::actors {

at::Tensor Job::encode_together(const at::Tensor& pixels, const at::Tensor& noise) {
  const auto tick = [this](int, int) { tools_.progress.tick_in(begin_.epoch); };
  const WaitForWork wait_for = [this](const tensor::Work& work) { wait(work); };
  const auto vae = tools_.stage.picture_encoder();
  const bool tiled = begin_.request.vae_tiling;
  const auto sampled = [&](const models::LatentDistribution& found, const at::Tensor& own_noise) {
    return vae.scaled(found.sample(own_noise.to(vae.options()))).to(at::kFloat).contiguous();
  };
  if (begin_.groups.vae == 0)
    return sampled(tiled ? vae.encode_tiled(pixels, tick) : vae.encode(pixels, tick), noise);
  const auto encoders = group(begin_.groups.vae);
  if (tiled) {
    const auto found = encode_tiles_together(vae, pixels, *encoders, wait_for, tick);
    return found.mean.defined() ? sampled(found, noise) : at::Tensor();
  }
  HaloExchange port(*encoders, size_.latent_height, wait_for);
  const auto rows = models::RowShards(size_.latent_height, port.shards()).of(port.shard());
  return port.collect_rows(
      sampled(vae.encode_rows(pixels, port, tick), noise.narrow(2, rows.begin, rows.size())));
}

at::Tensor Job::encode_picture() {
  if (!starts_from_picture() || begin_.vae.degree == 0) return {};
  if (!init_image_) throw std::logic_error("[actor] the picture to start from is not here");
  // The file and its own pixels are gone before the encoder begins: the plan counts on it.
  const auto pixels = [&] {
    const auto png = std::exchange(init_image_, nullptr);
    try {
      return models::to_model_range(models::resize_lanczos(
          models::decode_png({reinterpret_cast<const char*>(png->data()), png->size()}),
          begin_.request.height, begin_.request.width));
    } catch (const std::exception& error) {
      throw std::runtime_error("[actor] the picture to begin with cannot be decoded: " +
                               std::string(error.what()));
    }
  }();
  const auto encoded = encode_together(pixels, make_noise().draw(1));
  if (encoded.defined()) require_finite(encoded, "encoded picture");
  return encoded;
}

void Job::start_from_picture(const at::Tensor& encoded) {
  if (!starts_from_picture()) return;
  const auto device = tools_.stage.device();
  auto clean = encoded.defined()
                   ? encoded.to(device, at::kFloat).contiguous()
                   : at::empty({1, channels_, size_.latent_height, size_.latent_width},
                               at::TensorOptions().dtype(at::kFloat).device(device));
  if (begin_.groups.caption != 0)
    wait(group(begin_.groups.caption)->broadcast(clean, begin_.image_root));
  if (!latents_.defined()) return;
  auto source = make_noise();
  source.draw(1);  // what the picture's own latents were drawn with
  const auto noise = source.draw().slice(0, begin_.first_image, begin_.last_image).to(device);
  latents_.copy_(sampler_->add_noise(clean, noise, 0));
}

}  // namespace troupe::actors
