#include "models/spec/vae_spec.h"

#include <algorithm>

namespace troupe::spec {
namespace {

constexpr std::int64_t kMaxWidth = 1 << 16;
constexpr std::size_t kMaxLevels = 8;

void check_blocks(const ConfigReader& config, const char* key, std::string_view type,
                  std::size_t levels) {
  if (!config.has(key)) {
    if (levels != 1) config.refuse(key, "must have one entry for each of block_out_channels");
    return;
  }
  const auto types = config.texts(key);
  if (types.size() != levels) {
    config.refuse(key,
                  "must have one entry for each of block_out_channels, " + std::to_string(levels));
  }
  if (std::ranges::any_of(types, [&](const auto& found) { return found != type; })) {
    config.refuse(key, "is not supported (only " + std::string(type) + ")");
  }
}

class DecoderTensors {
 public:
  explicit DecoderTensors(const VaeSpec& spec) : spec_(spec) {}

  std::vector<ExpectedTensor> list() {
    const auto& widths = spec_.block_out_channels;
    const std::int64_t coarsest = widths.back();
    if (spec_.use_post_quant_conv) {
      convolution("post_quant_conv", spec_.latent_channels, spec_.latent_channels, 1);
    }
    convolution("decoder.conv_in", spec_.latent_channels, coarsest, 3);
    resnet("decoder.mid_block.resnets.0.", coarsest, coarsest);
    if (spec_.mid_block_add_attention) attention("decoder.mid_block.attentions.0.", coarsest);
    resnet("decoder.mid_block.resnets.1.", coarsest, coarsest);
    std::int64_t in = coarsest;
    for (std::size_t level = 0; level < widths.size(); ++level) {
      const std::int64_t out = widths[widths.size() - 1 - level];
      const std::string prefix = "decoder.up_blocks." + std::to_string(level) + ".";
      for (std::int64_t i = 0; i <= spec_.layers_per_block; ++i) {
        resnet(prefix + "resnets." + std::to_string(i) + ".", in, out);
        in = out;
      }
      if (level + 1 < widths.size()) convolution(prefix + "upsamplers.0.conv", out, out, 3);
    }
    affine("decoder.conv_norm_out", in);
    convolution("decoder.conv_out", in, spec_.out_channels, 3);
    return std::move(tensors_);
  }

 private:
  void convolution(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t side) {
    tensors_.push_back({name + ".weight", {out, in, side, side}});
    tensors_.push_back({name + ".bias", {out}});
  }
  void affine(const std::string& name, std::int64_t width) {
    tensors_.push_back({name + ".weight", {width}});
    tensors_.push_back({name + ".bias", {width}});
  }
  void resnet(const std::string& prefix, std::int64_t in, std::int64_t out) {
    affine(prefix + "norm1", in);
    convolution(prefix + "conv1", in, out, 3);
    affine(prefix + "norm2", out);
    convolution(prefix + "conv2", out, out, 3);
    if (in != out) convolution(prefix + "conv_shortcut", in, out, 1);
  }
  void attention(const std::string& prefix, std::int64_t width) {
    affine(prefix + "group_norm", width);
    const std::pair<const char*, const char*> names[] = {
        {"to_q", "query"}, {"to_k", "key"}, {"to_v", "value"}, {"to_out.0", "proj_attn"}};
    for (const auto& [name, old_name] : names) {
      tensors_.push_back(
          {prefix + name + ".weight", {width, width}, {prefix + old_name + ".weight"}});
      tensors_.push_back({prefix + name + ".bias", {width}, {prefix + old_name + ".bias"}});
    }
  }

  const VaeSpec& spec_;
  std::vector<ExpectedTensor> tensors_;
};

}  // namespace

VaeSpec read_vae_spec(const ConfigReader& config) {
  VaeSpec spec;
  spec.latent_channels = config.integer_or("latent_channels", spec.latent_channels, 1, kMaxWidth);
  spec.out_channels = config.integer_or("out_channels", spec.out_channels, 1, kMaxWidth);
  if (config.has("block_out_channels")) {
    spec.block_out_channels = config.integers("block_out_channels");
  }
  spec.layers_per_block = config.integer_or("layers_per_block", spec.layers_per_block, 1, 64);
  spec.norm_num_groups = config.integer_or("norm_num_groups", spec.norm_num_groups, 1, kMaxWidth);
  spec.scaling_factor = config.number_or("scaling_factor", spec.scaling_factor);
  spec.shift_factor = config.optional_number("shift_factor").value_or(0.0);
  spec.mid_block_add_attention = config.boolean_or("mid_block_add_attention", true);
  spec.use_post_quant_conv = config.boolean_or("use_post_quant_conv", true);
  spec.force_upcast = config.boolean_or("force_upcast", true);
  config.only("act_fn", "silu");
  config.only("latents_mean", nullptr);
  config.only("latents_std", nullptr);

  const auto& widths = spec.block_out_channels;
  if (widths.empty() || widths.size() > kMaxLevels) {
    config.refuse("block_out_channels",
                  "must have 1 to " + std::to_string(kMaxLevels) + " entries");
  }
  for (std::int64_t width : widths) {
    if (width < 1 || width > kMaxWidth || width % spec.norm_num_groups != 0) {
      config.refuse("block_out_channels", "must be multiples of norm_num_groups, " +
                                              std::to_string(spec.norm_num_groups));
    }
  }
  check_blocks(config, "up_block_types", "UpDecoderBlock2D", widths.size());
  check_blocks(config, "down_block_types", "DownEncoderBlock2D", widths.size());
  config.harmless({"in_channels", "sample_size", "use_quant_conv"});
  config.finish();
  if (!(spec.scaling_factor > 0 && spec.scaling_factor < 1e6)) {
    config.refuse("scaling_factor", "must be positive");
  }
  if (!(spec.shift_factor > -1e6 && spec.shift_factor < 1e6)) {
    config.refuse("shift_factor", "must be finite");
  }
  return spec;
}

bool is_ignorable_vae_tensor(std::string_view name) {
  return name.starts_with("encoder.") || name.starts_with("quant_conv.");
}

std::vector<ExpectedTensor> expected_tensors(const VaeSpec& spec) {
  return DecoderTensors(spec).list();
}

}  // namespace troupe::spec
