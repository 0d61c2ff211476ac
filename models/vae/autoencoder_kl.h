#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <initializer_list>
#include <optional>

#include "models/spec/vae_spec.h"
#include "models/vae/coder.h"
#include "models/vae/halo_port.h"
#include "models/vae/tiling.h"

namespace troupe::models {

/// Called when a block is done, with the number of blocks done and of all.
using VaeProgress = std::function<void(int done, int total)>;

/// A Gaussian for each value of the latents, both [B, latent_channels, h, w], not scaled.
struct LatentDistribution {
  at::Tensor mean, logvar;
  /// Makes the distribution of an encoder's moments [B, 2 · latent_channels, h, w].
  static LatentDistribution of(const at::Tensor& moments);
  const at::Tensor& mode() const { return mean; }
  /// mean + deviation · noise; `noise` has the mean's shape.
  at::Tensor sample(const at::Tensor& noise) const;
};

/// diffusers' AutoencoderKL. A picture is coded whole, by rows over the shards of a HaloPort, or in
/// tiles. Pictures of a batch are coded one at a time: peak memory is that of one, and none depends
/// on its neighbours in the batch, by so much as rounding. Methods throw std::invalid_argument for
/// another shape; what `progress` throws ends the coding.
class AutoencoderKL {
 public:
  /// Loads the halves asked for, nothing of the other. Throws std::runtime_error naming the tensor
  /// that is missing or misshapen.
  AutoencoderKL(const spec::VaeSpec& spec, const WeightStore& weights, at::ScalarType dtype,
                at::Device device,
                std::initializer_list<spec::VaeHalf> halves = {spec::VaeHalf::decoder});

  /// Final latents [B, latent_channels, h, w], as the sampler leaves them, to pictures
  /// [B, out_channels, h·f, w·f] around [-1, 1] in the decoder's dtype, f = spec.scale_factor().
  /// Divides by the scaling factor itself.
  at::Tensor decode(const at::Tensor& latents, const VaeProgress& progress = nullptr) const;
  /// Decodes by rows: every shard passes all the latents and gets its own rows of the pictures,
  /// [B, out_channels, rows·f, w·f] with RowShards(h, port.shards()).of(port.shard()).
  at::Tensor decode_rows(const at::Tensor& latents, HaloPort& port,
                         const VaeProgress& progress = nullptr) const;
  /// Decodes in tiles, with the memory of one tile beside input and output (see TileGrid).
  at::Tensor decode_tiled(const at::Tensor& latents, const VaeProgress& progress = nullptr) const;
  /// Decodes tile `index` of decode_tiles(spec, h, w) by itself, [B, out_channels, ≤ tile, ≤ tile],
  /// for ranks that share tiles out and join them with a TileJoiner.
  at::Tensor decode_tile(const at::Tensor& latents, const TileGrid& grid, int index,
                         const VaeProgress& progress = nullptr) const;

  /// Pictures [B, in_channels, H, W] in [-1, 1], H and W at least f, to the distribution of their
  /// latents, H / f × W / f.
  LatentDistribution encode(const at::Tensor& pictures,
                            const VaeProgress& progress = nullptr) const;
  /// Every shard passes the whole pictures and gets its own rows, RowShards(H / f, shards).
  LatentDistribution encode_rows(const at::Tensor& pictures, HaloPort& port,
                                 const VaeProgress& progress = nullptr) const;
  /// Encodes in tiles; H and W in multiples of f.
  LatentDistribution encode_tiled(const at::Tensor& pictures,
                                  const VaeProgress& progress = nullptr) const;
  /// The moments that tile `index` of encode_tiles(spec, H, W) adds, [B, 2 · latent_channels,
  /// ≤ tile, ≤ tile]: joined by a TileJoiner they are what LatentDistribution::of takes.
  at::Tensor encode_tile(const at::Tensor& pictures, const TileGrid& grid, int index,
                         const VaeProgress& progress = nullptr) const;

  /// Encoded latents as a sampler takes them, (z - shift) · scaling factor; `decode` undoes it.
  at::Tensor scaled(const at::Tensor& latents) const;

  /// The dtype that a pipeline running in `model` decodes in: float32 instead of float16 where the
  /// checkpoint asks for it.
  static at::ScalarType decode_dtype(const spec::VaeSpec& spec, at::ScalarType model);

  const spec::VaeSpec& spec() const { return spec_; }
  /// Dtype and device of what it returns.
  at::TensorOptions options() const { return at::TensorOptions().dtype(dtype_).device(device_); }
  /// Steps that `progress` counts for one picture, or one tile of one.
  int blocks() const;
  int encoder_blocks() const;

  /// Feature maps larger than this are computed in runs of rows about as large; at least 1.
  void set_chunk_bytes(std::int64_t bytes) { chunk_bytes_ = bytes; }

 private:
  const vae::Coder& decoder() const;
  const vae::Coder& encoder() const;
  void check(const char* what, const at::Tensor& input, std::int64_t channels,
             std::int64_t least) const;
  at::Tensor unscaled(const at::Tensor& latents) const;

  spec::VaeSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  at::MemoryFormat memory_format_;
  std::int64_t chunk_bytes_;
  std::optional<vae::Coder> decoder_, encoder_;
};

}  // namespace troupe::models
