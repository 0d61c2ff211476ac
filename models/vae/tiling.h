#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/spec/vae_spec.h"
#include "models/vae/row_shards.h"

namespace troupe::models {

/// Where the tiles of tiled coding lie, and how what becomes of them is joined: as diffusers'
/// AutoencoderKL with tiling on does it, with tiles of `sample_size` that overlap by a quarter.
/// A tile knows nothing of the others, so the result is another one than without tiles.
struct TileGrid {
  std::vector<RowRun> rows, columns;  ///< of the input
  std::int64_t blend = 0;             ///< rows and columns of the output that fade over
  std::int64_t limit = 0;             ///< rows and columns that a tile adds to the output

  int count() const { return static_cast<int>(rows.size() * columns.size()); }
  /// A view of tile `index`, row by row, of the input [B, C, height, width].
  at::Tensor tile(const at::Tensor& input, int index) const;
};

/// Latents h × w into tiles, or pictures; one tile where the whole is not larger. Throws
/// std::invalid_argument where sample_size is no multiple of four latents, so that overlaps of
/// latents and pixels would not match.
TileGrid decode_tiles(const spec::VaeSpec& spec, std::int64_t height, std::int64_t width);
TileGrid encode_tiles(const spec::VaeSpec& spec, std::int64_t height, std::int64_t width);

/// Joins coded tiles, which come row by row.
class TileJoiner {
 public:
  explicit TileJoiner(TileGrid grid) : grid_(std::move(grid)) {}

  /// The next tile [B, C, height, width]; it is blended in place.
  void add(const at::Tensor& tile);
  /// The whole, after the last tile.
  at::Tensor join() const;

 private:
  TileGrid grid_;
  int count_ = 0;
  std::vector<at::Tensor> above_, row_;        // tiles of the row before, and of this one
  std::vector<at::Tensor> row_parts_, parts_;  // what is done
};

}  // namespace troupe::models
