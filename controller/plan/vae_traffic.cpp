#include "controller/plan/vae_traffic.h"

#include <algorithm>

#include "controller/plan/layout.h"
#include "controller/plan/request_defaults.h"
#include "models/spec/vae_spec.h"

namespace troupe::plan {
namespace {

using Bytes = std::uint64_t;

constexpr Bytes kPixel = sizeof(float);  // of a video's frames, and of a sampler's latents

/// Place of a rank among those who code together.
struct Place {
  int rank = 0;
  int size = 1;
  Bytes rows = 0;      // of the latents, its own
  Bytes pictures = 0;  // of the replica
  int dp = 0;          // the replica
};

/// Ranks that code the pictures of a replica together.
class Together {
 public:
  Together(const Plan& plan, const spec::ModelSpec& model, int dp)
      : dp_(dp),
        ranks_(plan.decoders(dp)),
        rows_(split_rows(
            static_cast<int>(plan.latent_height / model.latent_frames(plan.request.num_frames)),
            static_cast<int>(ranks_.size()))),
        pictures_(plan.images[dp].end - plan.images[dp].begin) {}

  const std::vector<int>& ranks() const { return ranks_; }
  Place place(std::size_t index) const {
    return {static_cast<int>(index), static_cast<int>(ranks_.size()),
            Bytes(rows_[index].end - rows_[index].begin), pictures_, dp_};
  }

 private:
  int dp_;
  std::vector<int> ranks_;
  std::vector<wire::RowRange> rows_;
  Bytes pictures_;
};

/// Returns the number of frames whose rows a causal convolution over three reads, where so many
/// come: each frame's own, and those of each of the two before it anew.
Bytes frames_read(Bytes frames) {
  return frames + (frames > 0 ? frames - 1 : 0) + (frames > 1 ? frames - 2 : 0);
}

/// Bytes that layers tell the other shards, as models/vae calls its HaloPort: of a picture, or of a
/// video of `frames` latent frames.
class Rows {
 public:
  Rows(const Place& place, Bytes element, Bytes groups, Bytes latent_width, Bytes frames)
      : place_(place), element_(element), groups_(groups), width_(latent_width), frames_(frames) {}

  void add(const spec::VaeLayer& layer) {
    using Kind = spec::VaeLayer::Kind;
    const Bytes width = width_ * static_cast<Bytes>(layer.scale_in);
    const auto in = static_cast<Bytes>(layer.in), out = static_cast<Bytes>(layer.out);
    switch (layer.kind) {
      case Kind::norm:
        return norm();
      case Kind::convolution:
        if (layer.side > 1) halo(in, width, frames_read(frames_));
        return;
      case Kind::residual:
        norm();
        halo(in, width, frames_read(frames_));
        norm();
        return halo(out, width, frames_read(frames_));
      case Kind::attention:
        norm();
        told_.attention += frames_ * (place_.size - 1) * 2 * place_.rows *
                           static_cast<Bytes>(layer.scale_in) * width * in * element_;
        return;
      case Kind::upsample:  // before they are doubled
        return halo(in, width, frames_);
      case Kind::downsample:  // of stride 2: reads no row above its own
        return halo(in, width, frames_, /*reads_above=*/false);
      case Kind::doubled_frames:
        frames_ = 2 * frames_ - 1;
        return;
      case Kind::halved_frames:
        frames_ = (frames_ + 1) / 2;
        return;
      case Kind::kept:
      case Kind::added:
        return;
    }
  }
  void collect(Bytes bytes) {
    if (place_.rank > 0) told_.collected += bytes;
  }

  Bytes frames() const { return frames_; }
  const VaeTraffic& told() const { return told_; }

 private:
  void halo(Bytes channels, Bytes width, Bytes times, bool reads_above = true) {
    const Bytes to_next = reads_above && place_.rank + 1 < place_.size ? 1 : 0;
    const Bytes to_previous = place_.rank > 0 ? 1 : 0;
    told_.halos += times * (to_next + to_previous) * channels * width * element_;
  }
  /// Adds count, sum and sum of squares of each group, float64.
  void norm() {
    told_.moments += all_reduce_bytes(3 * groups_, sizeof(double), place_.size, place_.rank);
  }

  const Place place_;
  const Bytes element_, groups_, width_;
  Bytes frames_;
  VaeTraffic told_;
};

VaeTraffic decoded_rows(const Plan& plan, const spec::VaeSpec& vae, const Place& place) {
  const Bytes element = coded_bytes(plan, vae);
  Rows rows(place, element, vae.norm_num_groups, plan.latent_width, 1);
  for (const auto& layer : spec::layers_of(vae, spec::VaeHalf::decoder))
    rows.add(layer);
  const Bytes scale = vae.scale_factor();
  rows.collect(vae.out_channels * place.rows * scale * plan.latent_width * scale * element);
  return rows.told();
}

/// Returns what the rows of `pictures` send that are encoded one after the other.
VaeTraffic encoded_rows(const Plan& plan, const spec::VaeSpec& vae, const Place& place,
                        const EncodedPictures& pictures) {
  Rows rows(place, coded_bytes(plan, vae), vae.norm_num_groups, plan.latent_width, 1);
  for (int picture = 0; picture < pictures.count(); ++picture) {
    for (const auto& layer : spec::layers_of(vae, spec::VaeHalf::encoder))
      rows.add(layer);
  }
  rows.collect((pictures.begun + pictures.beside) * vae.latent_channels * place.rows *
               plan.latent_width * kPixel);
  return rows.told();
}

/// Returns what the rows of a video's frames send; its decoder has no groups.
VaeTraffic decoded_frames(const Plan& plan, const spec::WanVaeSpec& vae, const Place& place) {
  Rows rows(place, kPixel, 0, plan.latent_width, vae.latent_frames(plan.request.num_frames));
  for (const auto& layer : spec::layers_of(vae, spec::VaeHalf::decoder))
    rows.add(layer);
  const Bytes scale = vae.scale_factor();
  rows.collect(rows.frames() * vae.out_channels * place.rows * scale * plan.latent_width * scale *
               kPixel);
  return rows.told();
}

/// Returns what the rows of `frames` frames that a video is given send.
VaeTraffic encoded_frames(const Plan& plan, const spec::WanVaeSpec& vae, const Place& place,
                          Bytes frames) {
  Rows rows(place, kPixel, 0, plan.latent_width, frames);
  for (const auto& layer : spec::layers_of(vae, spec::VaeHalf::encoder))
    rows.add(layer);
  rows.collect(rows.frames() * vae.z_dim * place.rows * plan.latent_width * kPixel);
  return rows.told();
}

/// Returns the positions of a rank's tiles of height × width, which it sends to the first rank.
Bytes positions_of_tiles(const Place& place, std::int64_t height, std::int64_t width,
                         std::int64_t tile) {
  if (place.rank == 0 || (height <= tile && width <= tile)) return 0;
  Bytes positions = 0;
  int index = 0;
  for (const auto& [top, bottom] : spec::tile_runs(height, tile)) {
    for (const auto& [left, right] : spec::tile_runs(width, tile)) {
      if (index++ % place.size == place.rank) positions += (bottom - top) * (right - left);
    }
  }
  return positions;
}

VaeTraffic decoded(const Plan& plan, const spec::ModelSpec& model, const Place& place) {
  if (place.size < 2 || !plan.decodes()) return {};
  VaeTraffic one;
  if (model.video_vae) {
    one = decoded_frames(plan, *model.video_vae, place);
  } else if (plan.request.vae_tiling) {
    const auto scale = model.vae.scale_factor();
    one.collected = positions_of_tiles(place, plan.latent_height, plan.latent_width,
                                       model.vae.sample_size / scale) *
                    scale * scale * model.vae.out_channels * coded_bytes(plan, model.vae);
  } else {
    one = decoded_rows(plan, model.vae, place);
  }
  return {one.halos * place.pictures, one.moments * place.pictures, one.attention * place.pictures,
          one.collected * place.pictures};
}

VaeTraffic encoded(const Plan& plan, const spec::ModelSpec& model, const Place& place) {
  if (place.size < 2) return {};
  if (const auto frames = given_frames(plan.request, model); frames > 0)
    return encoded_frames(plan, *model.video_vae, place, static_cast<Bytes>(frames));
  const auto pictures = encoded_pictures(plan, model, place.dp);
  if (!plan.request.vae_tiling) return encoded_rows(plan, model.vae, place, pictures);
  const auto scale = model.vae.scale_factor();
  const Bytes positions =
      positions_of_tiles(place, plan.request.height, plan.request.width, model.vae.sample_size);
  return {.collected = static_cast<Bytes>(pictures.count()) * positions / (scale * scale) * 2 *
                       model.vae.latent_channels * coded_bytes(plan, model.vae)};
}

template <class Traffic>
VaeTraffic of_rank(const Plan& plan, const spec::ModelSpec& model, int rank,
                   const Traffic& traffic) {
  const Together together(plan, model, mesh::Mesh(plan.degrees).coordinates(rank).dp);
  const auto found = std::find(together.ranks().begin(), together.ranks().end(), rank);
  if (found == together.ranks().end()) return {};
  return traffic(plan, model, together.place(found - together.ranks().begin()));
}

void add(RankTraffic& traffic, const char* role, Bytes bytes) {
  if (bytes > 0) traffic.sent[role] += bytes;
}

/// Adds the float32 latents that a holder sends to the decoders when they are done, and to the
/// first of them for each preview or latents of a step that are asked for.
void add_latents(const Plan& plan, const Together& together, int dp,
                 std::vector<RankTraffic>& all) {
  const auto& request = plan.request;
  const bool shows =
      request.progress_interval > 0 && request.progress_content != ProgressContent::none;
  const Bytes shown = shows ? request.steps / request.progress_interval : 0;
  const auto& decoders = together.ranks();
  const Bytes row = Bytes(plan.images[dp].end - plan.images[dp].begin) * plan.latent_channels *
                    (plan.latent_height / plan.token_rows) * plan.latent_width * kPixel;
  const auto holders = plan.latent_holders(dp);
  for (std::size_t holder = 0; holder < holders.size(); ++holder) {
    Bytes rows = 0;
    for (const auto& run : rows_of_rank(plan, static_cast<int>(holder)))
      rows += run.end - run.begin;
    const int rank = holders[holder];
    const Bytes others = decoders.size() - std::count(decoders.begin(), decoders.end(), rank);
    add(all[rank], "rows", (others + (rank == decoders.front() ? 0 : shown)) * rows * row);
  }
}

}  // namespace

std::uint64_t coded_bytes(const Plan& plan, const spec::VaeSpec& vae) {
  const auto dtype = plan.request.dtype;
  return dtype == ComputeType::float32 || (dtype == ComputeType::float16 && vae.force_upcast) ? 4
                                                                                              : 2;
}

VaeTraffic decode_traffic(const Plan& plan, const spec::ModelSpec& model, int rank) {
  return of_rank(plan, model, rank, decoded);
}

VaeTraffic encode_traffic(const Plan& plan, const spec::ModelSpec& model, int rank) {
  return of_rank(plan, model, rank, encoded);
}

void add_vae_traffic(const Plan& plan, const spec::ModelSpec& model,
                     std::vector<RankTraffic>& all) {
  for (int dp = 0; dp < plan.degrees.dp; ++dp) {
    const Together together(plan, model, dp);
    for (std::size_t index = 0; index < together.ranks().size(); ++index) {
      const auto place = together.place(index);
      add(all[together.ranks()[index]], "vae",
          decoded(plan, model, place).total() + encoded(plan, model, place).total());
    }
    add_latents(plan, together, dp, all);
  }
}

}  // namespace troupe::plan
