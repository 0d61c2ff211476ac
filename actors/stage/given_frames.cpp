#include "actors/stage/given_frames.h"

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "actors/parallel/halo_exchange.h"
#include "actors/stage/encode_picture.h"
#include "models/image/resize.h"
#include "models/vae/halo_port.h"

namespace troupe::actors {

std::int64_t GivenFrames::latent_frames() const {
  return stand_beside() ? job_.size.frames : job_.size.given_frames;
}

void GivenFrames::encode() {
  if (!files_.first) return;
  // Files and their own pixels are gone before the encoder begins: the plan counts on it.
  const auto first = read(files_.first, "the first frame");
  const auto last = files_.last ? read(files_.last, "the last frame") : at::Tensor();
  encoded_ = encode(first, last);
  if (encoded_.defined()) job_.require_finite(encoded_, "encoded frames");
}

at::Tensor GivenFrames::read(control::BlobBytes& file, const char* what) {
  const auto& request = job_.begin.request;
  const auto name = std::to_string(control::blob_checksum(file->data(), file->size())) + " of " +
                    std::to_string(file->size());
  const auto picture = read_picture(job_, file, what);
  if (job_.begin.vae.rank == 0 && job_.tools.stage.spec().vision)
    seen_.push_back(job_.tools.stage.see(picture, name, [this] { job_.tick(); }));
  return models::to_model_range(models::resize_lanczos(picture, request.height, request.width));
}

at::Tensor GivenFrames::encode(const at::Tensor& first, const at::Tensor& last) {
  const std::int64_t frames = stand_beside() ? job_.begin.request.num_frames : 1;
  const at::Tensor between = frames > 1 ? at::zeros_like(first) : at::Tensor();
  const auto source = [&](std::int64_t frame) {
    if (frame == 0) return first;
    return frame + 1 == frames && last.defined() ? last : between;
  };
  const auto tick = [this] { job_.tick(); };
  const WaitForWork wait_for = [this](const tensor::Work& work) { job_.waits.wait(work); };
  const auto vae = job_.tools.stage.frame_encoder();
  const auto encoders = job_.group(job_.begin.groups.vae);
  if (!encoders) return vae.encode(frames, source, tick);
  HaloExchange port(*encoders, job_.size.latent_height / job_.size.frames, wait_for);
  const auto own = vae.encode_rows(frames, source, port, tick).contiguous();
  const auto width = own.size(3);
  const auto all = port.collect_rows(own.view({1, job_.channels * latent_frames(), -1, width}));
  return all.defined() ? all.view({1, job_.channels, -1, width}) : at::Tensor();
}

at::Tensor GivenFrames::blank() const {
  const auto rows = job_.size.latent_height / job_.size.frames * latent_frames();
  return at::zeros({1, job_.channels, rows, job_.size.latent_width},
                   at::TensorOptions().device(job_.tools.stage.device()));
}

at::Tensor GivenFrames::nothing_seen() const {
  const auto& facts = job_.tools.stage.spec().transformer;
  if (facts.seen_tokens == 0) return {};
  const auto& stage = job_.tools.stage;
  return at::zeros({1, facts.seen_tokens, facts.seen_width},
                   at::TensorOptions().dtype(stage.dtype()).device(stage.device()));
}

void GivenFrames::give(const at::Tensor& frames) {
  if (!stand_beside()) return latents_.begin_with_frames(frames);
  // As WanImageToVideoPipeline has it: a channel for each frame of a latent one, 1 where it is
  // given, of which the first latent frame has one alone.
  const auto& spec = *job_.tools.stage.spec().video_vae;
  const auto rows = job_.size.latent_height / job_.size.frames;
  const auto mask = at::zeros(
      {1, spec.frame_factor(), job_.size.latent_height, job_.size.latent_width}, frames.options());
  mask.narrow(2, 0, rows).fill_(1);
  if (job_.begin.request.last_image.bytes > 0)
    mask.narrow(1, spec.frame_factor() - 1, 1)
        .narrow(2, job_.size.latent_height - rows, rows)
        .fill_(1);
  latents_.put_beside(at::cat({mask, frames}, 1));
}

at::Tensor GivenFrames::keep_blank() {
  if (needs_frames(job_)) give(blank());
  return nothing_seen();
}

at::Tensor GivenFrames::share() {
  const auto replica = job_.group(job_.begin.groups.caption);
  const auto told = [&](const at::Tensor& own) {
    if (replica) job_.waits.wait(replica->broadcast(own, job_.begin.image_root));
    return own;
  };
  if (needs_frames(job_)) {
    give(told(encoded_.defined() ? encoded_.to(job_.tools.stage.device()).contiguous() : blank()));
    encoded_ = at::Tensor();
  }
  auto seen = nothing_seen();
  if (!seen.defined()) return seen;
  if (!seen_.empty()) seen = at::cat(std::exchange(seen_, {}), 1).contiguous();
  return told(seen);
}

}  // namespace troupe::actors
