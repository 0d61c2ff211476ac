#include "models/vae/autoencoder_kl_wan.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <sstream>
#include <stdexcept>
#include <vector>

#include "models/vae/halo_port.h"

namespace troupe::models {
namespace {

at::Tensor by_channel(const std::vector<double>& values, at::Device device) {
  return at::tensor(values, at::kDouble).to(at::kFloat).view({1, -1, 1, 1}).to(device);
}

}  // namespace

AutoencoderKLWan::AutoencoderKLWan(const spec::WanVaeSpec& spec, const WeightStore& weights,
                                   at::Device device)
    : spec_(spec),
      device_(device),
      memory_format_(vae::Loader(weights, at::kFloat, device).memory_format()),
      chunk_bytes_(device.is_cpu() ? kCpuChunk : kGpuChunk),
      decoder_(spec, vae::Loader(weights, at::kFloat, device)),
      mean_(by_channel(spec.latents_mean, device)),
      inverse_std_(by_channel(spec.latents_std, device).reciprocal()) {}

void AutoencoderKLWan::decode_rows(const at::Tensor& latents, std::int64_t frames, HaloPort& port,
                                   const vae::Tick& tick, const FrameSink& sink) const {
  if (latents.dim() != 4 || latents.size(1) != spec_.z_dim || frames < 1 ||
      latents.size(2) < frames || latents.size(2) % frames != 0 || latents.size(3) < 1) {
    std::ostringstream text;
    text << "[AutoencoderKLWan] latents " << latents.sizes() << " are not [B, " << spec_.z_dim
         << ", " << frames << " · h, w]";
    throw std::invalid_argument(text.str());
  }
  const c10::InferenceMode no_grad;
  const std::int64_t height = latents.size(2) / frames;
  const RowRun rows = RowShards(height, port.shards()).of(port.shard());
  const Pass pass{port, chunk_bytes_};
  const vae::Tick each = tick ? tick : [] {};
  for (std::int64_t video = 0; video < latents.size(0); ++video) {
    auto state = decoder_.start();
    std::int64_t number = 0;
    for (std::int64_t frame = 0; frame < frames; ++frame) {
      const at::Tensor own =
          latents.narrow(0, video, 1).narrow(2, frame * height + rows.begin, rows.size());
      const at::Tensor unscaled = own.to(device_, at::kFloat).div(inverse_std_).add_(mean_);
      decoder_.push(unscaled.contiguous(memory_format_), state, pass, each,
                    [&](const at::Tensor& pixels) { sink(video, number++, pixels); });
    }
  }
}

at::Tensor AutoencoderKLWan::decode(const at::Tensor& latents, std::int64_t frames,
                                    const vae::Tick& tick) const {
  WholePicture whole;
  std::vector<at::Tensor> videos;
  std::vector<at::Tensor> parts;
  std::int64_t current = 0;
  const auto finish = [&] {
    videos.push_back(at::cat(parts, 2));
    parts.clear();
  };
  decode_rows(latents, frames, whole, tick,
              [&](std::int64_t video, std::int64_t, const at::Tensor& pixels) {
                if (video != current) finish();
                current = video;
                parts.push_back(pixels.contiguous());
              });
  finish();
  return at::cat(videos);
}

}  // namespace troupe::models
