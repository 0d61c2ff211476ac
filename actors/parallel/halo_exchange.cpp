#include "actors/parallel/halo_exchange.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {
namespace {

// Rows travel as [1, n, w, C]: on the CPU, where feature maps are channels-last, without a copy.
at::Tensor outgoing(const at::Tensor& x, std::int64_t row) {
  return x.narrow(2, row, 1).permute({0, 2, 3, 1}).contiguous();
}

at::Tensor room_for_row(const at::Tensor& x) {
  return at::empty({1, 1, x.size(3), x.size(1)}, x.options());
}

at::Tensor incoming(const at::Tensor& row) {
  return row.permute({0, 3, 1, 2});
}

// Work of ranks that share tiles out: rank r has tiles r, r + N, …
struct SharedTiles {
  std::function<at::Tensor(int index, const models::VaeProgress&)> compute;
  std::function<at::Tensor(int index)> room;  // for a tile that another rank sends
  int steps;                                  // that progress counts for a tile
};

// All tiles joined at rank 0, undefined elsewhere.
at::Tensor join_together(const models::TileGrid& grid, const SharedTiles& tiles,
                         tensor::Group& group, const WaitForWork& wait,
                         const models::VaeProgress& progress) {
  const int ranks = group.size();
  const int own_tiles = (grid.count() - group.rank() + ranks - 1) / ranks;
  int done = 0;
  const models::VaeProgress count = [&](int, int) {
    if (progress) progress(++done, own_tiles * tiles.steps);
  };

  if (group.rank() != 0) {
    tensor::Work sent;
    for (int i = group.rank(); i < grid.count(); i += ranks) {
      const auto tile = tiles.compute(i, count);
      wait(sent);
      sent = group.send(tile, 0);
    }
    wait(sent);
    return {};
  }
  models::TileJoiner joiner(grid);
  for (int first = 0; first < grid.count(); first += ranks) {
    std::vector<at::Tensor> round = {at::Tensor()};
    std::vector<tensor::PeerTensor> receives;
    for (int i = first + 1; i < std::min(first + ranks, grid.count()); ++i) {
      round.push_back(tiles.room(i));
      receives.push_back({round.back(), i - first});
    }
    // One operation, so that no rank's tile waits for another rank's.
    const auto arrived = receives.empty() ? tensor::Work() : group.grouped({}, receives);
    round.front() = tiles.compute(first, count);
    wait(arrived);
    for (const auto& tile : round)
      joiner.add(tile);
  }
  return joiner.join();
}

}  // namespace

HaloExchange::HaloExchange(tensor::Group& group, std::int64_t latent_rows, WaitForWork wait)
    : group_(group), rows_(latent_rows, group.size()), wait_(std::move(wait)) {}

models::Halo HaloExchange::exchange(const at::Tensor& x, bool above, bool below) {
  const int before = shard() - 1;
  const int after = shard() + 1 < shards() ? shard() + 1 : -1;
  std::vector<tensor::PeerTensor> sends;
  std::vector<tensor::PeerTensor> receives;
  models::Halo halo;
  if (before >= 0) {
    if (below) sends.push_back({outgoing(x, 0), before});
    if (above) {
      receives.push_back({room_for_row(x), before});
      halo.above = incoming(receives.back().tensor);
    }
  }
  if (after >= 0) {
    if (above) sends.push_back({outgoing(x, x.size(2) - 1), after});
    if (below) {
      receives.push_back({room_for_row(x), after});
      halo.below = incoming(receives.back().tensor);
    }
  }
  if (!sends.empty() || !receives.empty()) wait_(group_.grouped(sends, receives));
  return halo;
}

void HaloExchange::sum(const at::Tensor& values) {
  if (shards() > 1) wait_(group_.all_reduce(values, tensor::ReduceOp::sum));
}

std::int64_t HaloExchange::unit_of(const at::Tensor& own, int dimension) const {
  const std::int64_t rows = rows_.of(shard()).size();
  if (own.size(dimension) % rows != 0) {
    throw std::invalid_argument("[HaloExchange] " + std::to_string(own.size(dimension)) +
                                " values are no multiple of this shard's " + std::to_string(rows) +
                                " rows");
  }
  return own.size(dimension) / rows;
}

at::Tensor HaloExchange::gather(const at::Tensor& own) {
  if (shards() == 1) return own;
  const std::int64_t unit = unit_of(own, 0);
  auto sizes = own.sizes().vec();
  sizes[0] = rows_.rows() * unit;
  const at::Tensor all = at::empty(sizes, own.options());
  std::vector<at::Tensor> parts;
  for (int shard = 0; shard < shards(); ++shard) {
    const auto rows = rows_.of(shard);
    parts.push_back(all.narrow(0, rows.begin * unit, rows.size() * unit));
  }
  wait_(group_.all_gather(parts, own.contiguous()));
  return all;
}

at::Tensor HaloExchange::collect_rows(const at::Tensor& own) {
  if (shards() == 1) return own;
  const std::int64_t unit = unit_of(own, 2);
  if (shard() != 0) {
    wait_(group_.send(own.contiguous(), 0));
    return {};
  }
  std::vector<at::Tensor> parts = {own};
  std::vector<tensor::PeerTensor> receives;
  auto sizes = own.sizes().vec();
  for (int shard = 1; shard < shards(); ++shard) {
    sizes[2] = rows_.of(shard).size() * unit;
    parts.push_back(at::empty(sizes, own.options().memory_format(at::MemoryFormat::Contiguous)));
    receives.push_back({parts.back(), shard});
  }
  wait_(group_.grouped({}, receives));
  return at::cat(parts, 2);
}

at::Tensor decode_tiles_together(const models::AutoencoderKL& vae, const at::Tensor& latents,
                                 tensor::Group& group, const WaitForWork& wait,
                                 const models::VaeProgress& progress) {
  const c10::InferenceMode no_grad;
  const auto& spec = vae.spec();
  const auto grid = models::decode_tiles(spec, latents.size(2), latents.size(3));
  const SharedTiles tiles{.compute =
                              [&](int index, const models::VaeProgress& count) {
                                return vae.decode_tile(latents, grid, index, count);
                              },
                          .room =
                              [&](int index) {
                                const auto of = grid.tile(latents, index).sizes().vec();
                                const auto scale = spec.scale_factor();
                                return at::empty(
                                    {of[0], spec.out_channels, of[2] * scale, of[3] * scale},
                                    vae.options());
                              },
                          .steps = static_cast<int>(latents.size(0)) * vae.blocks()};
  return join_together(grid, tiles, group, wait, progress);
}

models::LatentDistribution encode_tiles_together(const models::AutoencoderKL& vae,
                                                 const at::Tensor& pictures, tensor::Group& group,
                                                 const WaitForWork& wait,
                                                 const models::VaeProgress& progress) {
  const c10::InferenceMode no_grad;
  const auto& spec = vae.spec();
  const auto grid = models::encode_tiles(spec, pictures.size(2), pictures.size(3));
  const SharedTiles tiles{.compute =
                              [&](int index, const models::VaeProgress& count) {
                                return vae.encode_tile(pictures, grid, index, count);
                              },
                          .room =
                              [&](int index) {
                                const auto of = grid.tile(pictures, index).sizes().vec();
                                const auto scale = spec.scale_factor();
                                return at::empty(
                                    {of[0], 2 * spec.latent_channels, of[2] / scale, of[3] / scale},
                                    vae.options());
                              },
                          .steps = static_cast<int>(pictures.size(0)) * vae.encoder_blocks()};
  const auto moments = join_together(grid, tiles, group, wait, progress);
  return moments.defined() ? models::LatentDistribution::of(moments) : models::LatentDistribution{};
}

}  // namespace troupe::actors
