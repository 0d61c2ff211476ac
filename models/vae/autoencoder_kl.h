#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <variant>
#include <vector>

#include "models/spec/vae_spec.h"
#include "models/vae/halo_port.h"
#include "models/vae/layers.h"

namespace troupe::models {

/// Places of the tiles of tiled coding, and the way in which their results are joined: as
/// diffusers' AutoencoderKL with tiling on, with tiles of `sample_size` that overlap by a quarter.
/// A tile uses nothing of the others, so the result is another one than without tiles.
struct TileGrid {
  std::vector<RowRun> rows, columns;  ///< rows and columns of the input, for each row and column of
                                      ///< tiles
  std::int64_t blend = 0;             ///< rows and columns of the output that fade over
  std::int64_t limit = 0;             ///< rows and columns that a tile adds to the output

  int count() const { return static_cast<int>(rows.size() * columns.size()); }
  /// A view of tile `index`, row by row, of the input [B, C, height, width].
  at::Tensor tile(const at::Tensor& input, int index) const;
};

/// Returns the tiles of latents (decode_tiles) or pictures (encode_tiles) of height × width; one
/// tile if the whole is not larger. Throws std::invalid_argument if sample_size is no multiple of
/// four latents, so that overlaps of latents and pixels would not match.
TileGrid decode_tiles(const spec::VaeSpec& spec, std::int64_t height, std::int64_t width);
TileGrid encode_tiles(const spec::VaeSpec& spec, std::int64_t height, std::int64_t width);

/// Joins coded tiles, which come row by row.
class TileJoiner {
 public:
  explicit TileJoiner(TileGrid grid) : grid_(std::move(grid)) {}

  /// Adds the next tile [B, C, height, width]; it is blended in place.
  void add(const at::Tensor& tile);
  /// Returns the whole, after the last tile.
  at::Tensor join() const;

 private:
  TileGrid grid_;
  int count_ = 0;
  std::vector<at::Tensor> above_, row_;        // tiles of the row before, and of this one
  std::vector<at::Tensor> row_parts_, parts_;  // what is done
};

}  // namespace troupe::models

namespace troupe::models::vae {

/// One half of diffusers' AutoencoderKL with its 1×1 convolution at the latents' side.
class Coder {
 public:
  Coder(const spec::VaeSpec& spec, spec::VaeHalf half, const Loader& load);

  /// The decoder: unscaled latents [1, C, h, w] of this shard's rows to its rows of the picture.
  /// The encoder: pictures [1, C, H, W] of this shard's rows to its rows of the moments
  /// [1, 2·latents, h, w], means first, then log variances.
  at::Tensor operator()(at::Tensor x, const Pass& pass, const Tick& tick) const;
  /// Ticks of one call.
  int blocks() const { return static_cast<int>(layers_.size()); }

 private:
  struct Convolution {
    GroupNorm norm;  // with SiLU before it, where it has weights
    Conv2d conv;
    std::int64_t repeat = 1;
  };
  using Layer = std::variant<Convolution, ResnetBlock2D, Attention>;
  std::vector<Layer> layers_;
};

}  // namespace troupe::models::vae

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

  /// Encoded latents as a sampler takes them, (z - shift) · scaling factor, or patched, then
  /// shifted and scaled by the statistics of their channels; `decode` undoes it.
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
  at::Tensor patched_scale_, patched_mean_;  // [1, channels, 1, 1]; undefined without patches
  std::int64_t chunk_bytes_;
  std::optional<vae::Coder> decoder_, encoder_;
};

}  // namespace troupe::models
