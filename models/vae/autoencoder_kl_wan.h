#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "models/spec/wan_vae_spec.h"
#include "models/vae/halo_port.h"
#include "models/vae/wan_decoder.h"

namespace troupe::models {

/// diffusers' AutoencoderKLWan, its decoder alone, in float32. Videos of a batch are decoded one at
/// a time, and of each a frame at a time. Latents and pixels are laid out as tall pictures: frame
/// below frame. Methods throw std::invalid_argument for another shape.
class AutoencoderKLWan {
 public:
  /// Throws std::runtime_error naming the tensor that is missing or misshapen.
  AutoencoderKLWan(const spec::WanVaeSpec& spec, const WeightStore& weights, at::Device device);

  /// Gets frame `frame` of video `video`, [1, 3, rows · f, w · f] in [-1, 1].
  using FrameSink =
      std::function<void(std::int64_t video, std::int64_t frame, const at::Tensor& pixels)>;

  /// Final latents [B, z_dim, frames · h, w], as the sampler leaves them, in latent frames. Every
  /// shard passes all of them, and its sink gets its own rows of each frame,
  /// RowShards(h, port.shards()).of(port.shard()). Brings them to the decoder's scale itself.
  /// `tick` is called as blocks finish; what it or the sink throws ends the decoding.
  void decode_rows(const at::Tensor& latents, std::int64_t frames, HaloPort& port,
                   const vae::Tick& tick, const FrameSink& sink) const;
  /// The whole pictures, [B, 3, F · h · f, w · f].
  at::Tensor decode(const at::Tensor& latents, std::int64_t frames,
                    const vae::Tick& tick = nullptr) const;

  const spec::WanVaeSpec& spec() const { return spec_; }
  /// Feature maps larger than this are computed in runs of rows about as large; at least 1.
  void set_chunk_bytes(std::int64_t bytes) { chunk_bytes_ = bytes; }

 private:
  spec::WanVaeSpec spec_;
  at::Device device_;
  at::MemoryFormat memory_format_;
  std::int64_t chunk_bytes_;
  vae::WanDecoder decoder_;
  at::Tensor mean_, inverse_std_;  // [1, z, 1, 1]
};

}  // namespace troupe::models
