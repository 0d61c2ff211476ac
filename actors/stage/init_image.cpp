#include "actors/stage/init_image.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "actors/parallel/halo_exchange.h"
#include "models/image/png.h"
#include "models/image/resize.h"
#include "models/vae/halo_port.h"

namespace troupe::actors {

at::Tensor InitImage::read_pixels(control::BlobBytes& picture, const std::string& what) {
  if (!picture) throw std::logic_error("[actor] " + what + " is not here");
  const auto file = std::exchange(picture, nullptr);
  const auto& request = job_.begin.request;
  try {
    return models::resize_lanczos(
        models::decode_picture({reinterpret_cast<const char*>(file->data()), file->size()},
                               [this] { job_.tick(); }),
        request.height, request.width);
  } catch (const EpochEnded&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error("[actor] " + what + " cannot be decoded: it " + error.what());
  }
}

at::Tensor InitImage::encode() {
  if (!needs_image(job_.begin) || job_.begin.vae.degree == 0) return {};
  // The file and its own pixels are gone before the encoder begins: the plan counts on it.
  const auto pixels = models::to_model_range(read_pixels(picture_, "the picture to begin with"));
  const auto encoded = encode_together(pixels, latents_.image_noise());
  if (!encoded.defined()) return {};
  job_.require_finite(encoded, "encoded picture");
  if (!job_.is_masked()) return encoded;
  const auto mask = models::latent_mask(read_pixels(mask_, "the mask"), job_.size.latent_height,
                                        job_.size.latent_width);
  return at::cat({encoded, mask.to(encoded.device()).expand({encoded.size(0), -1, -1, -1})}, 1);
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

void InitImage::keep_blank() {
  if (!job_.is_masked()) return;
  const auto blank = at::zeros({1, job_.channels, job_.size.latent_height, job_.size.latent_width},
                               at::TensorOptions().device(job_.tools.stage.device()));
  latents_.begin_with(blank, blank.narrow(1, 0, 1));
}

void InitImage::begin_latents(const at::Tensor& encoded) {
  if (!needs_image(job_.begin)) return;
  const auto options = at::TensorOptions().dtype(at::kFloat).device(job_.tools.stage.device());
  auto clean = encoded.defined()
                   ? encoded.to(options).contiguous()
                   : at::empty({job_.begin.request.seeds.size() > 1 ? job_.images() : 1,
                                job_.channels + job_.is_masked(), job_.size.latent_height,
                                job_.size.latent_width},
                               options);
  if (const auto replica = job_.group(job_.begin.groups.caption))
    job_.waits.wait(replica->broadcast(clean, job_.begin.image_root));
  latents_.begin_with(clean.narrow(1, 0, job_.channels),
                      job_.is_masked() ? clean.narrow(1, job_.channels, 1) : at::Tensor());
}

}  // namespace troupe::actors
