#include "models/spec/wan_vae_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/format.h"

namespace troupe::spec {
namespace {

constexpr std::int64_t kMaxChannels = 1 << 14;

/// The tensors of an AutoencoderKLWan's layers.
class WanTensors {
 public:
  void add(const VaeLayer& layer) {
    using Kind = VaeLayer::Kind;
    switch (layer.kind) {
      case Kind::norm:
        return norm(layer.name, layer.in);
      case Kind::residual:
        return residual(layer.name, layer.in, layer.out);
      case Kind::attention:
        return attention(layer.name, layer.in);
      case Kind::convolution:
        return convolution(layer.name, layer.in, layer.out, {layer.side, layer.side, layer.side});
      case Kind::upsample:
      case Kind::downsample:
        return convolution(layer.name, layer.in, layer.out, {3, 3});
      case Kind::doubled_frames:
        return convolution(layer.name, layer.in, 2 * layer.out, {3, 1, 1});
      case Kind::halved_frames:
        return convolution(layer.name, layer.in, layer.out, {3, 1, 1});
      case Kind::kept:
      case Kind::added:
        return;
    }
  }
  std::vector<ExpectedTensor> take() { return std::move(tensors_); }

 private:
  void convolution(const std::string& name, std::int64_t in, std::int64_t out,
                   std::vector<std::int64_t> kernel) {
    std::vector<std::int64_t> shape = {out, in};
    shape.insert(shape.end(), kernel.begin(), kernel.end());
    tensors_.push_back({name + ".weight", std::move(shape)});
    tensors_.push_back({name + ".bias", {out}});
  }
  void norm(const std::string& name, std::int64_t channels) {
    tensors_.push_back({name + ".gamma", {channels, 1, 1, 1}});
  }
  void residual(const std::string& name, std::int64_t in, std::int64_t out) {
    norm(name + ".norm1", in);
    convolution(name + ".conv1", in, out, {3, 3, 3});
    norm(name + ".norm2", out);
    convolution(name + ".conv2", out, out, {3, 3, 3});
    if (in != out) convolution(name + ".conv_shortcut", in, out, {1, 1, 1});
  }
  void attention(const std::string& name, std::int64_t channels) {
    tensors_.push_back({name + ".norm.gamma", {channels, 1, 1}});
    convolution(name + ".to_qkv", channels, 3 * channels, {1, 1});
    convolution(name + ".proj", channels, channels, {1, 1});
  }

  std::vector<ExpectedTensor> tensors_;
};

std::vector<bool> booleans(const ConfigReader& config, const char* key) {
  std::vector<bool> values;
  const auto& list = config.raw(key);
  if (!list.is_array()) config.refuse(key, "must be a list");
  for (const auto& item : list) {
    if (!item.is_boolean()) config.refuse(key, "must be a list of true and false");
    values.push_back(item.get<bool>());
  }
  return values;
}

}  // namespace

std::int64_t WanVaeSpec::frame_factor() const {
  return std::int64_t{1} << std::ranges::count(temporal_downsample, true);
}

VaeSpec WanVaeSpec::like_pictures() const {
  VaeSpec spec;
  spec.latent_channels = z_dim;
  spec.patch_size = patch_size;
  spec.block_out_channels.clear();
  for (const auto mult : dim_mult)
    spec.block_out_channels.push_back(base_dim * mult);
  spec.layers_per_block = num_res_blocks;
  spec.scaling_factor = 1;
  spec.use_quant_conv = true;
  spec.use_post_quant_conv = true;
  spec.force_upcast = true;
  return spec;
}

WanVaeSpec read_wan_vae_spec(const ConfigReader& config) {
  WanVaeSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxChannels);
  };
  spec.base_dim = spec.encoder_base_dim = size("base_dim", spec.base_dim);
  if (config.has_value("decoder_base_dim")) spec.base_dim = size("decoder_base_dim", 96);
  spec.z_dim = size("z_dim", spec.z_dim);
  if (config.has("dim_mult")) spec.dim_mult = config.integers("dim_mult");
  spec.num_res_blocks = config.integer_or("num_res_blocks", spec.num_res_blocks, 1, 64);
  if (config.has("temperal_downsample"))
    spec.temporal_downsample = booleans(config, "temperal_downsample");
  spec.latents_mean = config.numbers("latents_mean");
  spec.latents_std = config.numbers("latents_std");
  spec.is_residual = config.boolean_or("is_residual", spec.is_residual);
  if (config.has_value("patch_size")) spec.patch_size = config.integer("patch_size", 1, 16);
  const std::int64_t last = spec.out_channels * spec.patch_size * spec.patch_size;
  if (size("out_channels", spec.out_channels) != last)
    config.refuse("out_channels", fmt::format("must be {}: 3 colors of patch_size² pixels", last));
  config.only("input_channels", 3);
  config.only("attn_scales", nlohmann::json::array());
  config.harmless({"dropout", "in_channels", "decoder_base_dim", "clip_output", "patch_size"});

  const auto levels = spec.dim_mult.size();
  if (levels < 1 || levels > 8) config.refuse("dim_mult", "must have 1 to 8 levels");
  for (std::size_t i = 0; i < levels; ++i) {
    const auto mult = spec.dim_mult[i];
    if (mult < 1 || mult > 64 || spec.base_dim * mult > kMaxChannels ||
        spec.encoder_base_dim * mult > kMaxChannels || (i > 0 && spec.base_dim * mult % 2 != 0)) {
      config.refuse("dim_mult", "gives a level an odd number of channels, or too many");
    }
  }
  if (spec.temporal_downsample.size() + 1 != levels) {
    config.refuse("temperal_downsample", "must have one entry between any two levels");
  }
  for (const auto& layer : layers_of(spec, VaeHalf::decoder)) {
    const std::int64_t grown = layer.scale_out / layer.scale_in;
    if (layer.kind == VaeLayer::Kind::added && layer.out * grown * grown % layer.in != 0)
      config.refuse("dim_mult", "gives a level channels that its input cannot be repeated to");
  }
  std::int64_t frames = 1;  // of the level, for each that comes out of it
  for (const auto& layer : layers_of(spec, VaeHalf::encoder)) {
    const std::int64_t shrunk = layer.scale_in / layer.scale_out;
    if (layer.kind == VaeLayer::Kind::kept) frames = 1;
    if (layer.kind == VaeLayer::Kind::halved_frames) frames = 2;
    if (layer.kind == VaeLayer::Kind::added && layer.in * frames * shrunk * shrunk % layer.out != 0)
      config.refuse("dim_mult", "gives a level channels that are no mean of its input's");
  }
  for (const char* key : {"latents_mean", "latents_std"}) {
    const auto& values = key[8] == 'm' ? spec.latents_mean : spec.latents_std;
    if (static_cast<std::int64_t>(values.size()) != spec.z_dim)
      config.refuse(key, fmt::format("must have z_dim = {} numbers", spec.z_dim));
  }
  config.only("scale_factor_temporal", spec.frame_factor());
  config.only("scale_factor_spatial", spec.scale_factor());
  config.finish();
  return spec;
}

std::vector<ExpectedTensor> expected_tensors(const WanVaeSpec& spec, VaeHalf half) {
  WanTensors tensors;
  for (const auto& layer : layers_of(spec, half))
    tensors.add(layer);
  return tensors.take();
}

std::uint64_t kept_elements(const WanVaeSpec& spec, VaeHalf half) {
  using Kind = VaeLayer::Kind;
  WanTensors tensors;
  for (const auto& layer : layers_of(spec, half)) {
    const bool over_frames =
        layer.kind == Kind::doubled_frames || layer.kind == Kind::halved_frames;
    if (!spec.one_frame || !over_frames) tensors.add(layer);
  }
  std::uint64_t all = 0;
  for (const ExpectedTensor& tensor : tensors.take()) {
    const bool over_time = tensor.shape.size() == 5 && tensor.shape[2] == 3;
    std::uint64_t own = 1;
    for (const auto extent : tensor.shape)
      own *= static_cast<std::uint64_t>(extent);
    all += spec.one_frame && over_time ? own / 3 : own;
  }
  return all;
}

}  // namespace troupe::spec
