#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/spec/vae_spec.h"
#include "models/vae/halo_port.h"

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
