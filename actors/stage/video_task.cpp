#include <ATen/ATen.h>

#include "actors/parallel/halo_exchange.h"
#include "actors/stage/job.h"
#include "models/image/frames.h"
#include "models/image/pixels.h"
#include "models/image/png.h"

// What the decode task does where a model makes videos.

namespace troupe::actors {

TaskResult Job::decode_videos(wire::RowRange videos) {
  TaskResult result;
  const auto tick = [this] { tools_.progress.tick_in(begin_.epoch); };
  const WaitForWork wait_for = [this](const tensor::Work& work) { wait(work); };
  const auto& vae = tools_.stage.video_vae();
  const auto decoders = group(begin_.groups.vae);
  std::optional<HaloExchange> shared;
  if (decoders) shared.emplace(*decoders, size_.latent_height / size_.frames, wait_for);
  models::WholePicture whole;
  models::HaloPort& port = shared ? static_cast<models::HaloPort&>(*shared) : whole;

  const auto& request = begin_.request;
  std::vector<std::string> frames;
  const auto sink = [&](std::int64_t video, std::int64_t, const at::Tensor& pixels) {
    const auto frame = shared ? shared->collect_rows(pixels.contiguous()) : pixels;
    if (begin_.vae.rank != 0) return;
    require_finite(frame, "decoded frame");
    frames.push_back(models::encode_png(models::to_uint8(frame)[0], {}));
    tick();
    if (static_cast<int>(frames.size()) < request.num_frames) return;
    auto clip = models::join_frames(frames, picture_text(begin_.first_image + videos.begin + video),
                                    models::kFramesPerSecond);
    frames.clear();
    result.blobs.push_back(
        publish("picture", std::move(clip), {request.output_height, request.output_width, 3}));
  };
  vae.decode_rows(latents_.slice(0, videos.begin, videos.end), size_.frames, port, tick, sink);
  if (begin_.vae.rank == 0 && request.want_latents && videos.end == images())
    result.blobs.push_back(publish_latents());
  return result;
}

}  // namespace troupe::actors
