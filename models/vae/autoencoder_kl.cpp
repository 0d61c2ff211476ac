#include "models/vae/autoencoder_kl.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include "models/spec/vae_spec.h"

namespace troupe::models::vae {

Coder::Coder(const spec::VaeSpec& spec, spec::VaeHalf half, const Loader& load) {
  using Kind = spec::VaeLayer::Kind;
  GroupNorm norm;
  for (const auto& layer : spec::layers_of(spec, half)) {
    switch (layer.kind) {
      case Kind::norm:
        norm = GroupNorm(load, layer.name, layer.in, spec.norm_num_groups);
        break;
      case Kind::residual:
        layers_.emplace_back(std::in_place_type<ResnetBlock2D>, load, layer.name, layer.in,
                             layer.out, spec.norm_num_groups);
        break;
      case Kind::attention:
        layers_.emplace_back(std::in_place_type<Attention>, load, layer.name, layer.in,
                             spec.norm_num_groups);
        break;
      case Kind::kept:
      case Kind::added:
        break;  // of videos
      case Kind::convolution:
      case Kind::upsample:
      case Kind::downsample:
      case Kind::doubled_frames:
      case Kind::halved_frames: {
        Conv2d conv(load, layer.name, layer.in, layer.out, layer.side,
                    layer.kind == Kind::downsample ? 2 : 1);
        layers_.emplace_back(Convolution{std::exchange(norm, {}), std::move(conv),
                                         layer.kind == Kind::upsample ? 2 : 1});
        break;
      }
    }
  }
}

at::Tensor Coder::operator()(at::Tensor x, const Pass& pass, const Tick& tick) const {
  for (const Layer& layer : layers_) {
    if (const auto* convolution = std::get_if<Convolution>(&layer)) {
      const bool prepared = convolution->norm.weight.defined();
      const Prepare prepare = prepared ? convolution->norm.with_silu(x, pass) : nullptr;
      x = convolution->conv({.x = x, .prepare = prepare, .repeat = convolution->repeat}, pass);
    } else if (const auto* residual = std::get_if<ResnetBlock2D>(&layer)) {
      x = (*residual)(std::move(x), pass);
    } else {
      x = std::get<Attention>(layer)(std::move(x), pass);
    }
    tick();
  }
  return x;
}

}  // namespace troupe::models::vae

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

// Counts the blocks of `calls` passes of `blocks` each.
vae::Tick counter(const VaeProgress& progress, std::int64_t calls, int blocks) {
  if (!progress) return [] {};
  return [progress, done = 0, total = static_cast<int>(calls) * blocks]() mutable {
    progress(++done, total);
  };
}

at::Tensor joined(const std::vector<at::Tensor>& pictures) {
  return pictures.size() == 1 ? pictures.front() : at::cat(pictures);
}

bool has(std::initializer_list<spec::VaeHalf> halves, spec::VaeHalf half) {
  return std::ranges::find(halves, half) != halves.end();
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
  // Encoded latents are patched when they are joined.
  return grid_of(height, width, spec.sample_size, latent_tile(spec) * spec.latent_patch);
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

LatentDistribution LatentDistribution::of(const at::Tensor& moments) {
  const auto halves = moments.chunk(2, 1);
  return {halves[0].contiguous(), halves[1].clamp(-30, 20).contiguous()};
}

at::Tensor LatentDistribution::sample(const at::Tensor& noise) const {
  return mean + at::exp(0.5 * logvar) * noise.to(mean.options());
}

AutoencoderKL::AutoencoderKL(const spec::VaeSpec& spec, const WeightStore& weights,
                             at::ScalarType dtype, at::Device device,
                             std::initializer_list<spec::VaeHalf> halves)
    : spec_(spec),
      dtype_(dtype),
      device_(device),
      chunk_bytes_(device.is_cpu() ? kCpuChunk : kGpuChunk) {
  const vae::Loader load(weights, dtype, device);
  memory_format_ = load.memory_format();
  if (spec.latent_patch > 1) {
    const auto statistics = [&](const char* name) {
      return load.get(name, {spec.latent_channels}).view({1, -1, 1, 1});
    };
    patched_mean_ = statistics(spec::kPatchedMean);
    patched_scale_ = at::sqrt(statistics(spec::kPatchedVariance) + spec.batch_norm_eps);
  }
  if (has(halves, spec::VaeHalf::decoder)) decoder_.emplace(spec, spec::VaeHalf::decoder, load);
  if (has(halves, spec::VaeHalf::encoder)) encoder_.emplace(spec, spec::VaeHalf::encoder, load);
}

at::ScalarType AutoencoderKL::decode_dtype(const spec::VaeSpec& spec, at::ScalarType model) {
  return model == at::kHalf && spec.force_upcast ? at::kFloat : model;
}

const vae::Coder& AutoencoderKL::decoder() const {
  if (!decoder_) throw std::logic_error("[AutoencoderKL] the decoder was not loaded");
  return *decoder_;
}

const vae::Coder& AutoencoderKL::encoder() const {
  if (!encoder_) throw std::logic_error("[AutoencoderKL] the encoder was not loaded");
  return *encoder_;
}

int AutoencoderKL::blocks() const {
  return decoder().blocks();
}

int AutoencoderKL::encoder_blocks() const {
  return encoder().blocks();
}

void AutoencoderKL::check(const char* what, const at::Tensor& input, std::int64_t channels,
                          std::int64_t least) const {
  if (input.dim() == 4 && input.size(0) > 0 && input.size(1) == channels &&
      input.size(2) >= least && input.size(3) >= least) {
    return;
  }
  std::ostringstream text;
  text << "[AutoencoderKL] " << what << " " << input.sizes() << " are not [B, " << channels
       << ", h, w], h and w at least " << least;
  throw std::invalid_argument(text.str());
}

at::Tensor AutoencoderKL::unscaled(const at::Tensor& latents) const {
  if (spec_.latent_patch > 1) {
    return at::pixel_shuffle(latents.to(device_, dtype_) * patched_scale_ + patched_mean_,
                             spec_.latent_patch);
  }
  at::Tensor x = latents.to(device_, dtype_) / spec_.scaling_factor;
  if (spec_.shift_factor != 0) x = x + spec_.shift_factor;
  return x;
}

at::Tensor AutoencoderKL::scaled(const at::Tensor& latents) const {
  if (spec_.latent_patch > 1)
    return (at::pixel_unshuffle(latents, spec_.latent_patch) - patched_mean_) / patched_scale_;
  return (latents - spec_.shift_factor) * spec_.scaling_factor;
}

at::Tensor AutoencoderKL::decode(const at::Tensor& latents, const VaeProgress& progress) const {
  WholePicture whole;
  return decode_rows(latents, whole, progress);
}

at::Tensor AutoencoderKL::decode_rows(const at::Tensor& latents, HaloPort& port,
                                      const VaeProgress& progress) const {
  check("latents", latents, spec_.latent_channels, 1);
  const c10::InferenceMode no_grad;
  const RowRun rows = RowShards(latents.size(2), port.shards()).of(port.shard());
  const at::Tensor own = latents.narrow(2, rows.begin, rows.size());
  const auto tick = counter(progress, own.size(0), blocks());
  std::vector<at::Tensor> pictures;
  for (const at::Tensor& picture : own.split(1)) {
    pictures.push_back(
        decoder()(unscaled(picture).contiguous(memory_format_), {port, chunk_bytes_}, tick)
            .contiguous());
  }
  return joined(pictures);
}

at::Tensor AutoencoderKL::decode_tile(const at::Tensor& latents, const TileGrid& grid, int index,
                                      const VaeProgress& progress) const {
  return decode(grid.tile(latents, index), progress);
}

at::Tensor AutoencoderKL::decode_tiled(const at::Tensor& latents,
                                       const VaeProgress& progress) const {
  check("latents", latents, spec_.latent_channels, 1);
  const c10::InferenceMode no_grad;
  const TileGrid grid = decode_tiles(spec_, latents.size(2), latents.size(3));
  const auto tick = counter(progress, latents.size(0) * grid.count(), blocks());
  TileJoiner joiner(grid);
  for (int i = 0; i < grid.count(); ++i) {
    joiner.add(decode_tile(latents, grid, i, [&](int, int) { tick(); }));
  }
  return joiner.join();
}

LatentDistribution AutoencoderKL::encode(const at::Tensor& pictures,
                                         const VaeProgress& progress) const {
  WholePicture whole;
  return encode_rows(pictures, whole, progress);
}

LatentDistribution AutoencoderKL::encode_rows(const at::Tensor& pictures, HaloPort& port,
                                              const VaeProgress& progress) const {
  const std::int64_t scale = spec_.scale_factor();
  check("pictures", pictures, spec_.in_channels, scale);
  const c10::InferenceMode no_grad;
  const RowRun latents = RowShards(pictures.size(2) / scale, port.shards()).of(port.shard());
  // The last shard also has the rows that do not fill a row of latents.
  const bool last = port.shard() + 1 == port.shards();
  const std::int64_t end = last ? pictures.size(2) : latents.end * scale;
  const at::Tensor own = pictures.slice(2, latents.begin * scale, end);
  const auto tick = counter(progress, own.size(0), encoder_blocks());
  std::vector<at::Tensor> moments;
  for (const at::Tensor& picture : own.split(1)) {
    moments.push_back(encoder()(picture.to(device_, dtype_).contiguous(memory_format_),
                                {port, chunk_bytes_}, tick));
  }
  return LatentDistribution::of(joined(moments));
}

at::Tensor AutoencoderKL::encode_tile(const at::Tensor& pictures, const TileGrid& grid, int index,
                                      const VaeProgress& progress) const {
  const std::int64_t scale = spec_.scale_factor();
  check("pictures", pictures, spec_.in_channels, scale);
  if (pictures.size(2) % scale != 0 || pictures.size(3) % scale != 0) {
    throw std::invalid_argument("[AutoencoderKL] tiles need height and width in multiples of " +
                                std::to_string(scale));
  }
  const c10::InferenceMode no_grad;
  const auto tick = counter(progress, pictures.size(0), encoder_blocks());
  WholePicture whole;
  std::vector<at::Tensor> moments;
  for (const at::Tensor& picture : grid.tile(pictures, index).split(1)) {
    moments.push_back(encoder()(picture.to(device_, dtype_).contiguous(memory_format_),
                                {whole, chunk_bytes_}, tick)
                          .contiguous());
  }
  return joined(moments);
}

LatentDistribution AutoencoderKL::encode_tiled(const at::Tensor& pictures,
                                               const VaeProgress& progress) const {
  check("pictures", pictures, spec_.in_channels, spec_.scale_factor());
  const c10::InferenceMode no_grad;
  const TileGrid grid = encode_tiles(spec_, pictures.size(2), pictures.size(3));
  const auto tick = counter(progress, pictures.size(0) * grid.count(), encoder_blocks());
  TileJoiner joiner(grid);
  for (int i = 0; i < grid.count(); ++i) {
    joiner.add(encode_tile(pictures, grid, i, [&](int, int) { tick(); }));
  }
  return LatentDistribution::of(joiner.join());
}

}  // namespace troupe::models
