#include "actors/stage/init_image.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "actors/parallel/halo_exchange.h"
#include "models/image/png.h"
#include "models/image/resize_lanczos.h"
#include "models/vae/row_shards.h"

namespace troupe::actors {

at::Tensor InitImage::read_pixels() {
  if (!png_) throw std::logic_error("[actor] the picture to start from is not here");
  const auto png = std::exchange(png_, nullptr);
  const auto& request = job_.begin.request;
  try {
    return models::to_model_range(models::resize_lanczos(
        models::decode_png({reinterpret_cast<const char*>(png->data()), png->size()}),
        request.height, request.width));
  } catch (const std::exception& error) {
    throw std::runtime_error("[actor] the picture to begin with cannot be decoded: " +
                             std::string(error.what()));
  }
}

at::Tensor InitImage::encode() {
  if (!job_.starts_from_image() || job_.begin.vae.degree == 0) return {};
  // The file and its own pixels are gone before the encoder begins: the plan counts on it.
  const auto pixels = read_pixels();
  const auto encoded = encode_together(pixels, latents_.image_noise());
  if (encoded.defined()) job_.require_finite(encoded, "encoded picture");
  return encoded;
}

at::Tensor InitImage::encode_together(const at::Tensor& pixels, const at::Tensor& noise) {
  const auto tick = [this](int, int) { job_.tick(); };
  const WaitForWork wait_for = [this](const tensor::Work& work) { job_.waits.wait(work); };
  const auto vae = job_.tools.stage.picture_encoder();
  const bool tiled = job_.begin.request.vae_tiling;
  const auto sampled = [&](const models::LatentDistribution& found, const at::Tensor& own_noise) {
    return vae.scaled(found.sample(own_noise.to(vae.options()))).to(at::kFloat).contiguous();
  };
  const auto encoders = job_.group(job_.begin.groups.vae);
  if (!encoders)
    return sampled(tiled ? vae.encode_tiled(pixels, tick) : vae.encode(pixels, tick), noise);
  if (tiled) {
    const auto found = encode_tiles_together(vae, pixels, *encoders, wait_for, tick);
    return found.mean.defined() ? sampled(found, noise) : at::Tensor();
  }
  HaloExchange port(*encoders, job_.size.latent_height, wait_for);
  const auto rows = models::RowShards(job_.size.latent_height, port.shards()).of(port.shard());
  return port.collect_rows(
      sampled(vae.encode_rows(pixels, port, tick), noise.narrow(2, rows.begin, rows.size())));
}

void InitImage::begin_latents(const at::Tensor& encoded) {
  if (!job_.starts_from_image()) return;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(job_.tools.stage.device());
  auto clean = encoded.defined()
                   ? encoded.to(options).contiguous()
                   : at::empty({job_.begin.request.seeds.size() > 1 ? job_.images() : 1,
                                job_.channels, job_.size.latent_height, job_.size.latent_width},
                               options);
  if (const auto replica = job_.group(job_.begin.groups.caption))
    job_.waits.wait(replica->broadcast(clean, job_.begin.image_root));
  latents_.begin_with(clean);
}

}  // namespace troupe::actors
