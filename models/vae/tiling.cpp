#include "models/vae/tiling.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "models/spec/tile_runs.h"

namespace troupe::models {
namespace {

std::vector<RowRun> runs(std::int64_t size, std::int64_t tile) {
  std::vector<RowRun> all;
  for (const auto& [begin, end] : spec::tile_runs(size, tile)) {
    all.push_back({begin, end});
  }
  return all;
}

TileGrid grid_of(std::int64_t height, std::int64_t width, std::int64_t in_tile,
                 std::int64_t out_tile) {
  if (height <= in_tile && width <= in_tile) return {{{0, height}}, {{0, width}}, 0, 0};
  const std::int64_t blend = out_tile / 4;
  return {runs(height, in_tile), runs(width, in_tile), blend, out_tile - blend};
}

std::int64_t latent_tile(const spec::VaeSpec& spec) {
  if (spec.sample_size % spec.tile_unit() != 0) {
    throw std::invalid_argument("[TileGrid] sample_size is " + std::to_string(spec.sample_size) +
                                ": tiles need a multiple of " + std::to_string(spec.tile_unit()));
  }
  return spec.sample_size / spec.scale_factor();
}

// The first rows (or columns) of `tile` fade over from the last of `before`.
void blend(const at::Tensor& before, const at::Tensor& tile, std::int64_t extent, int dimension) {
  extent = std::min({extent, before.size(dimension), tile.size(dimension)});
  if (extent == 0) return;
  const auto share = at::arange(extent, tile.options().dtype(at::kDouble)) / extent;
  std::vector<std::int64_t> shape(4, 1);
  shape[dimension] = extent;
  const auto weights = [&](const at::Tensor& w) { return w.to(tile.scalar_type()).view(shape); };
  const auto first = tile.narrow(dimension, 0, extent);
  const auto last = before.narrow(dimension, before.size(dimension) - extent, extent);
  first.copy_(last * weights(1 - share) + first * weights(share));
}

}  // namespace

at::Tensor TileGrid::tile(const at::Tensor& input, int index) const {
  const RowRun row = rows[index / columns.size()];
  const RowRun column = columns[index % columns.size()];
  return input.narrow(2, row.begin, row.size()).narrow(3, column.begin, column.size());
}

TileGrid decode_tiles(const spec::VaeSpec& spec, std::int64_t height, std::int64_t width) {
  return grid_of(height, width, latent_tile(spec), spec.sample_size);
}

TileGrid encode_tiles(const spec::VaeSpec& spec, std::int64_t height, std::int64_t width) {
  return grid_of(height, width, spec.sample_size, latent_tile(spec));
}

void TileJoiner::add(const at::Tensor& tile) {
  const c10::InferenceMode no_grad;
  const int columns = static_cast<int>(grid_.columns.size());
  const int column = count_ % columns;
  if (!above_.empty()) blend(above_[column], tile, grid_.blend, 2);
  if (column > 0) blend(row_.back(), tile, grid_.blend, 3);
  const auto kept = [&](std::int64_t size) {
    return grid_.count() == 1 ? size : std::min(size, grid_.limit);
  };
  const auto part = tile.narrow(2, 0, kept(tile.size(2))).narrow(3, 0, kept(tile.size(3)));
  row_parts_.push_back(part.contiguous());
  row_.push_back(tile);
  ++count_;
  if (column + 1 == columns) {
    parts_.push_back(at::cat(row_parts_, 3));
    row_parts_.clear();
    above_ = std::exchange(row_, {});
  }
}

at::Tensor TileJoiner::join() const {
  if (count_ != grid_.count()) {
    throw std::logic_error("[TileJoiner] " + std::to_string(count_) + " of " +
                           std::to_string(grid_.count()) + " tiles are there");
  }
  return parts_.size() == 1 ? parts_.front() : at::cat(parts_, 2);
}

}  // namespace troupe::models
