#include "actors/stage/encode_picture.h"

#include <ATen/ATen.h>

#include <stdexcept>
#include <utility>

#include "actors/parallel/halo_exchange.h"
#include "models/image/png.h"
#include "models/image/resize.h"
#include "models/vae/halo_port.h"

namespace troupe::actors {

at::Tensor read_picture(const JobContext& job, control::BlobBytes& file, const std::string& what) {
  if (!file) throw std::logic_error("[actor] " + what + " is not here");
  const auto own = std::exchange(file, nullptr);
  try {
    return models::decode_picture({reinterpret_cast<const char*>(own->data()), own->size()},
                                  [&job] { job.tick(); });
  } catch (const EpochEnded&) {
    throw;
  } catch (const std::exception& error) {
    throw std::runtime_error("[actor] " + what + " cannot be decoded: it " + error.what());
  }
}

at::Tensor read_resized(const JobContext& job, control::BlobBytes& picture, const std::string& what,
                        spec::PixelSize size) {
  return models::resize_lanczos(read_picture(job, picture, what), size.height, size.width);
}

at::Tensor encode_together(JobContext& job, const at::Tensor& pixels, const at::Tensor& noise) {
  const auto tick = [&job](int, int) { job.tick(); };
  const WaitForWork wait_for = [&job](const tensor::Work& work) { job.waits.wait(work); };
  const auto vae = job.tools.stage.picture_encoder();
  const bool tiled = job.begin.request.vae_tiling;
  const auto sampled = [&](const models::LatentDistribution& found, const at::Tensor& own_noise) {
    return vae.scaled(found.sample(own_noise.to(vae.options()))).to(at::kFloat).contiguous();
  };
  const auto encoders = job.group(job.begin.groups.vae);
  if (!encoders)
    return sampled(tiled ? vae.encode_tiled(pixels, tick) : vae.encode(pixels, tick), noise);
  if (tiled) {
    const auto found = encode_tiles_together(vae, pixels, *encoders, wait_for, tick);
    return found.mean.defined() ? sampled(found, noise) : at::Tensor();
  }
  HaloExchange port(*encoders, job.size.latent_height, wait_for);
  const auto rows = models::RowShards(job.size.latent_height, port.shards()).of(port.shard());
  return port.collect_rows(
      sampled(vae.encode_rows(pixels, port, tick), noise.narrow(2, rows.begin, rows.size())));
}

}  // namespace troupe::actors
