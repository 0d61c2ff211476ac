#include "models/spec/vae_spec.h"

#include <nlohmann/json.hpp>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/wan_vae_spec.h"

namespace troupe::spec {
namespace {

/// Adds layers one behind the other.
class Walk {
 public:
  Walk(std::int64_t channels, std::int64_t scale) : channels_(channels), scale_(scale) {}

  void add(VaeLayer::Kind kind, std::string name, std::int64_t out) {
    add(kind, std::move(name), out, scale_);
  }
  void add(VaeLayer::Kind kind, std::string name, std::int64_t out, std::int64_t scale_out) {
    layers_.push_back({kind, std::move(name), channels_, out, scale_, scale_out});
    channels_ = out;
    scale_ = scale_out;
  }
  void pointwise(std::string name) {
    add(VaeLayer::Kind::convolution, std::move(name), channels_);
    layers_.back().side = 1;
  }
  void residuals(const std::string& prefix, std::int64_t out, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      add(VaeLayer::Kind::residual, fmt::format("{}resnets.{}", prefix, i), out);
  }
  void keep(std::string name) {
    kept_ = {VaeLayer::Kind::added, name, channels_, channels_, scale_, scale_};
    add(VaeLayer::Kind::kept, std::move(name), channels_);
  }
  /// Adds what was kept last to the feature maps.
  void add_kept() {
    kept_.out = channels_;
    kept_.scale_out = scale_;
    layers_.push_back(kept_);
  }
  void middle(const std::string& prefix, bool with_attention) {
    add(VaeLayer::Kind::residual, prefix + "resnets.0", channels_);
    if (with_attention) add(VaeLayer::Kind::attention, prefix + "attentions.0", channels_);
    add(VaeLayer::Kind::residual, prefix + "resnets.1", channels_);
  }

  std::int64_t channels() const { return channels_; }
  std::int64_t scale() const { return scale_; }
  std::vector<VaeLayer> take() { return std::move(layers_); }

 private:
  std::int64_t channels_, scale_;
  VaeLayer kept_;
  std::vector<VaeLayer> layers_;
};

std::vector<VaeLayer> decoder(const VaeSpec& spec) {
  using Kind = VaeLayer::Kind;
  const auto& widths = spec.block_out_channels;
  Walk walk(spec.coded_channels(), spec.latent_patch);
  if (spec.use_post_quant_conv) walk.pointwise("post_quant_conv");
  walk.add(Kind::convolution, "decoder.conv_in", widths.back());
  walk.middle("decoder.mid_block.", spec.mid_block_add_attention);
  for (std::size_t block = 0; block < widths.size(); ++block) {
    const auto prefix = fmt::format("decoder.up_blocks.{}.", block);
    walk.residuals(prefix, widths[widths.size() - 1 - block], spec.layers_per_block + 1);
    if (block + 1 < widths.size())
      walk.add(Kind::upsample, prefix + "upsamplers.0.conv", walk.channels(), 2 * walk.scale());
  }
  walk.add(Kind::norm, "decoder.conv_norm_out", walk.channels());
  walk.add(Kind::convolution, "decoder.conv_out", spec.out_channels);
  return walk.take();
}

std::vector<VaeLayer> encoder(const VaeSpec& spec) {
  using Kind = VaeLayer::Kind;
  const auto& widths = spec.block_out_channels;
  Walk walk(spec.in_channels, spec.scale_factor());
  walk.add(Kind::convolution, "encoder.conv_in", widths.front());
  for (std::size_t block = 0; block < widths.size(); ++block) {
    const auto prefix = fmt::format("encoder.down_blocks.{}.", block);
    walk.residuals(prefix, widths[block], spec.layers_per_block);
    if (block + 1 < widths.size())
      walk.add(Kind::downsample, prefix + "downsamplers.0.conv", walk.channels(), walk.scale() / 2);
  }
  walk.middle("encoder.mid_block.", spec.mid_block_add_attention);
  walk.add(Kind::norm, "encoder.conv_norm_out", walk.channels());
  walk.add(Kind::convolution, "encoder.conv_out", 2 * spec.coded_channels());
  if (spec.use_quant_conv) walk.pointwise("quant_conv");
  return walk.take();
}

void check_blocks(const ConfigReader& config, const char* key, std::string_view type,
                  std::size_t levels) {
  if (!config.has(key)) {
    if (levels != 1) config.refuse(key, "must have one entry for each of block_out_channels");
    return;
  }
  const auto types = config.texts(key);
  if (types.size() != levels) {
    config.refuse(key,
                  fmt::format("must have one entry for each of block_out_channels, {}", levels));
  }
  if (std::ranges::any_of(types, [&](const auto& found) { return found != type; })) {
    config.refuse(key, "is not supported (only " + std::string(type) + ")");
  }
}

// A number, or height and width, of which the height counts.
std::int64_t sample_size_of(const ConfigReader& config, std::int64_t fallback) {
  if (!config.has_value("sample_size")) {
    config.harmless({"sample_size"});
    return fallback;
  }
  if (!config.raw("sample_size").is_array()) return config.integer("sample_size", 1, kMaxWidth);
  const auto sizes = config.integers("sample_size");
  if (sizes.empty() || sizes.front() < 1 || sizes.front() > kMaxWidth) {
    config.refuse("sample_size", "must be a size in pixels");
  }
  return sizes.front();
}

/// The tensors of an AutoencoderKL's layers.
class VaeTensors {
 public:
  void add(const VaeLayer& layer) {
    using Kind = VaeLayer::Kind;
    switch (layer.kind) {
      case Kind::norm:
        return affine(layer.name, layer.in);
      case Kind::residual:
        return residual(layer.name, layer.in, layer.out);
      case Kind::attention:
        return attention(layer.name, layer.in);
      case Kind::convolution:
      case Kind::upsample:
      case Kind::downsample:
      case Kind::doubled_frames:
      case Kind::halved_frames:
        return convolution(layer.name, layer.in, layer.out, layer.side);
      case Kind::kept:
      case Kind::added:
        return;
    }
  }
  std::vector<ExpectedTensor> take() { return std::move(tensors_); }

 private:
  void convolution(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t side) {
    tensors_.push_back({name + ".weight", {out, in, side, side}});
    tensors_.push_back({name + ".bias", {out}});
  }
  void affine(const std::string& name, std::int64_t width) {
    tensors_.push_back({name + ".weight", {width}});
    tensors_.push_back({name + ".bias", {width}});
  }
  void residual(const std::string& name, std::int64_t in, std::int64_t out) {
    affine(name + ".norm1", in);
    convolution(name + ".conv1", in, out, 3);
    affine(name + ".norm2", out);
    convolution(name + ".conv2", out, out, 3);
    if (in != out) convolution(name + ".conv_shortcut", in, out, 1);
  }
  void attention(const std::string& name, std::int64_t width) {
    affine(name + ".group_norm", width);
    const std::pair<const char*, const char*> names[] = {
        {".to_q", ".query"}, {".to_k", ".key"}, {".to_v", ".value"}, {".to_out.0", ".proj_attn"}};
    for (const auto& [now, before] : names) {
      tensors_.push_back({name + now + ".weight", {width, width}, {name + before + ".weight"}});
      tensors_.push_back({name + now + ".bias", {width}, {name + before + ".bias"}});
    }
  }

  std::vector<ExpectedTensor> tensors_;
};

}  // namespace

std::vector<VaeLayer> layers_of(const VaeSpec& spec, VaeHalf half) {
  return half == VaeHalf::decoder ? decoder(spec) : encoder(spec);
}

namespace {

std::vector<VaeLayer> decoder(const WanVaeSpec& spec) {
  using Kind = VaeLayer::Kind;
  Walk walk(spec.z_dim, 1);
  walk.pointwise("post_quant_conv");
  walk.add(Kind::convolution, "decoder.conv_in", spec.base_dim * spec.dim_mult.back());
  walk.middle("decoder.mid_block.", true);
  for (std::size_t block = 0; block < spec.dim_mult.size(); ++block) {
    const std::size_t level = spec.dim_mult.size() - 1 - block;
    const auto prefix = fmt::format("decoder.up_blocks.{}.", block);
    if (spec.is_residual && level > 0) walk.keep(prefix + "avg_shortcut");
    walk.residuals(prefix, spec.base_dim * spec.dim_mult[level], spec.num_res_blocks + 1);
    if (level == 0) break;
    const auto up = prefix + (spec.is_residual ? "upsampler." : "upsamplers.0.");
    if (spec.temporal_downsample[level - 1])
      walk.add(Kind::doubled_frames, up + "time_conv", walk.channels());
    walk.add(Kind::upsample, up + "resample.1", walk.channels() / (spec.is_residual ? 1 : 2),
             2 * walk.scale());
    if (spec.is_residual) walk.add_kept();
  }
  walk.add(Kind::norm, "decoder.norm_out", walk.channels());
  walk.add(Kind::convolution, "decoder.conv_out",
           spec.out_channels * spec.patch_size * spec.patch_size);
  return walk.take();
}

std::vector<VaeLayer> encoder(const WanVaeSpec& spec) {
  using Kind = VaeLayer::Kind;
  const std::size_t levels = spec.dim_mult.size();
  Walk walk(spec.out_channels * spec.patch_size * spec.patch_size, std::int64_t{1} << (levels - 1));
  walk.add(Kind::convolution, "encoder.conv_in", spec.encoder_base_dim);
  // Levels of 2.2's form have their layers below them; those of 2.1's are counted as one list.
  std::size_t number = 0;
  for (std::size_t level = 0; level < levels; ++level) {
    const auto own = fmt::format("encoder.down_blocks.{}.", level);
    const auto listed = [&] { return fmt::format("encoder.down_blocks.{}", number++); };
    if (spec.is_residual) walk.keep(own + "avg_shortcut");
    for (std::int64_t i = 0; i < spec.num_res_blocks; ++i)
      walk.add(Kind::residual, spec.is_residual ? fmt::format("{}resnets.{}", own, i) : listed(),
               spec.encoder_base_dim * spec.dim_mult[level]);
    if (level + 1 < levels) {
      const auto down = (spec.is_residual ? own + "downsampler" : listed()) + ".";
      walk.add(Kind::downsample, down + "resample.1", walk.channels(), walk.scale() / 2);
      if (spec.temporal_downsample[level])
        walk.add(Kind::halved_frames, down + "time_conv", walk.channels());
    }
    if (spec.is_residual) walk.add_kept();
  }
  walk.middle("encoder.mid_block.", true);
  walk.add(Kind::norm, "encoder.norm_out", walk.channels());
  walk.add(Kind::convolution, "encoder.conv_out", 2 * spec.z_dim);
  walk.pointwise("quant_conv");
  return walk.take();
}

}  // namespace

std::vector<VaeLayer> layers_of(const WanVaeSpec& spec, VaeHalf half) {
  return half == VaeHalf::decoder ? decoder(spec) : encoder(spec);
}

namespace {

/// Reads what both classes of VAEs have in common; `spec` has the defaults.
VaeSpec read_coder(const ConfigReader& config, VaeSpec spec) {
  spec.in_channels = config.integer_or("in_channels", spec.in_channels, 1, kMaxWidth);
  spec.latent_channels = config.integer_or("latent_channels", spec.latent_channels, 1, kMaxWidth);
  spec.out_channels = config.integer_or("out_channels", spec.out_channels, 1, kMaxWidth);
  if (config.has("block_out_channels")) {
    spec.block_out_channels = config.integers("block_out_channels");
  }
  spec.layers_per_block = config.integer_or("layers_per_block", spec.layers_per_block, 1, 64);
  spec.norm_num_groups = config.integer_or("norm_num_groups", spec.norm_num_groups, 1, kMaxWidth);
  spec.mid_block_add_attention = config.boolean_or("mid_block_add_attention", true);
  spec.sample_size = sample_size_of(config, spec.sample_size);
  spec.use_quant_conv = config.boolean_or("use_quant_conv", true);
  spec.use_post_quant_conv = config.boolean_or("use_post_quant_conv", true);
  config.only("act_fn", "silu");

  const auto& widths = spec.block_out_channels;
  if (widths.empty() || widths.size() > kMaxLevels) {
    config.refuse("block_out_channels", fmt::format("must have 1 to {} entries", kMaxLevels));
  }
  for (std::int64_t width : widths) {
    if (width < 1 || width > kMaxWidth || width % spec.norm_num_groups != 0) {
      config.refuse("block_out_channels",
                    fmt::format("must be multiples of norm_num_groups, {}", spec.norm_num_groups));
    }
  }
  check_blocks(config, "up_block_types", "UpDecoderBlock2D", widths.size());
  check_blocks(config, "down_block_types", "DownEncoderBlock2D", widths.size());
  config.finish();
  return spec;
}

}  // namespace

VaeSpec read_vae_spec(const ConfigReader& config) {
  VaeSpec spec;
  spec.scaling_factor = config.number_or("scaling_factor", spec.scaling_factor);
  spec.shift_factor = config.optional_number("shift_factor").value_or(0.0);
  spec.force_upcast = config.boolean_or("force_upcast", true);
  config.only("latents_mean", nullptr);
  config.only("latents_std", nullptr);
  spec = read_coder(config, std::move(spec));
  if (!(spec.scaling_factor > 0 && spec.scaling_factor < 1e6)) {
    config.refuse("scaling_factor", "must be positive");
  }
  if (!(spec.shift_factor > -1e6 && spec.shift_factor < 1e6)) {
    config.refuse("shift_factor", "must be finite");
  }
  return spec;
}

VaeSpec read_flux2_vae_spec(const ConfigReader& config) {
  VaeSpec spec{.latent_patch = 2,
               .latent_channels = 32,
               .block_out_channels = {128, 256, 512, 512},
               .layers_per_block = 2,
               .scaling_factor = 1,
               .sample_size = 1024,
               .force_upcast = false};
  config.only("patch_size", nlohmann::json::array({spec.latent_patch, spec.latent_patch}));
  config.only("decoder_block_out_channels", nullptr);
  spec.batch_norm_eps = config.number_or("batch_norm_eps", spec.batch_norm_eps);
  // Read by training alone; the pipeline never decodes in another type than its own.
  config.harmless({"batch_norm_momentum", "force_upcast"});
  spec = read_coder(config, std::move(spec));
  spec.latent_channels *= spec.latent_patch * spec.latent_patch;
  if (!(spec.batch_norm_eps > 0 && spec.batch_norm_eps < 1))
    config.refuse("batch_norm_eps", "must be between 0 and 1");
  return spec;
}

bool is_ignorable_vae_tensor(std::string_view name) {
  return name.starts_with("encoder.") || name.starts_with("quant_conv.") ||
         name == "bn.num_batches_tracked";
}

std::vector<ExpectedTensor> expected_tensors(const VaeSpec& spec, VaeHalf half) {
  VaeTensors tensors;
  for (const auto& layer : layers_of(spec, half))
    tensors.add(layer);
  auto all = tensors.take();
  if (spec.latent_patch > 1 && half == VaeHalf::decoder) {
    for (const char* name : {kPatchedMean, kPatchedVariance})
      all.push_back({name, {spec.latent_channels}});
  }
  return all;
}

}  // namespace troupe::spec
