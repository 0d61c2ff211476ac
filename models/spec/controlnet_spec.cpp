#include "models/spec/controlnet_spec.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/format.h"

namespace troupe::spec {
namespace {

/// Convolutions of the picture's embedding between its first and its last: of each size one that
/// keeps it, then one that halves it.
struct EmbeddingLayer {
  std::int64_t in = 0, out = 0;
};
std::vector<EmbeddingLayer> embedding_layers(const ControlNetSpec& spec) {
  std::vector<EmbeddingLayer> layers;
  const auto& widths = spec.embedding_widths;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    layers.push_back({widths[i], widths[i]});
    layers.push_back({widths[i], widths[i + 1]});
  }
  return layers;
}

}  // namespace

ControlNetSpec ControlNetSpec::read(const ConfigReader& config) {
  if (config.has("_class_name")) config.only("_class_name", std::string(kClass));
  ControlNetSpec spec;
  spec.network = UNetSpec::read_way_down(config);
  config.only("conditioning_channels", kPictureChannels);
  spec.blue_first =
      config.choice_or("controlnet_conditioning_channel_order", "rgb", {"rgb", "bgr"}) == "bgr";
  // Residuals that are one value for the whole picture are made for guess_mode alone.
  config.only("global_pool_conditions", false);
  constexpr const char* kWidths = "conditioning_embedding_out_channels";
  if (config.has_value(kWidths)) spec.embedding_widths = config.integers(kWidths);
  if (spec.embedding_widths.empty() || spec.embedding_widths.size() > kMaxLevels)
    config.refuse(kWidths, fmt::format("must have 1 to {} widths", kMaxLevels));
  for (const auto width : spec.embedding_widths)
    if (width < 1 || width > kMaxWidth)
      config.refuse(kWidths, fmt::format("must be from 1 to {}", kMaxWidth));
  config.finish();
  return spec;
}

std::vector<std::int64_t> ControlNetSpec::residual_channels() const {
  const auto& levels = network.levels;
  std::vector<std::int64_t> channels = {levels.front().channels};
  for (std::size_t l = 0; l < levels.size(); ++l) {
    const auto ends = l + 1 < levels.size() ? 1 : 0;
    channels.insert(channels.end(), static_cast<std::size_t>(levels[l].layers + ends),
                    levels[l].channels);
  }
  return channels;
}

std::vector<PlannedTensor> planned_tensors(const ControlNetSpec& spec) {
  auto planned = planned_tensors(spec.network);
  const auto convolution = [&](const std::string& name, std::int64_t in, std::int64_t out,
                               std::int64_t side) {
    const auto add = [&](const std::string& end, std::vector<std::int64_t> shape) {
      planned.push_back(
          {.tensor = {name + end, std::move(shape)}, .held = Held::block, .block = 0});
    };
    add(".weight", {out, in, side, side});
    add(".bias", {out});
  };
  const std::string embedding = "controlnet_cond_embedding.";
  convolution(embedding + "conv_in", ControlNetSpec::kPictureChannels,
              spec.embedding_widths.front(), 3);
  const auto layers = embedding_layers(spec);
  for (std::size_t i = 0; i < layers.size(); ++i)
    convolution(fmt::format("{}blocks.{}", embedding, i), layers[i].in, layers[i].out, 3);
  const auto channels = spec.residual_channels();
  convolution(embedding + "conv_out", spec.embedding_widths.back(), channels.front(), 3);
  for (std::size_t i = 0; i < channels.size(); ++i)
    convolution(fmt::format("controlnet_down_blocks.{}", i), channels[i], channels[i], 1);
  convolution("controlnet_mid_block", channels.back(), channels.back(), 1);
  return planned;
}

std::vector<ExpectedTensor> expected_tensors(const ControlNetSpec& spec) {
  std::vector<ExpectedTensor> expected;
  for (auto& planned : planned_tensors(spec))
    expected.push_back(std::move(planned.tensor));
  return expected;
}

void check_fit(const ControlNetSpec& spec, const ConfigReader& config, const UNetSpec& unet,
               std::int64_t vae_scale) {
  const UNetSpec& own = spec.network;
  const auto require = [&](const char* key, std::int64_t has, std::int64_t wanted, const char* of) {
    if (has != wanted) config.refuse(key, fmt::format("does not fit {}, which is {}", of, wanted));
  };
  const auto same = [&](const char* key, auto member) {
    require(key, own.*member, unet.*member, "the U-Net's");
  };
  same("in_channels", &UNetSpec::in_channels);
  require("block_out_channels", std::ssize(own.levels), std::ssize(unet.levels),
          "the number of the U-Net's");
  for (std::size_t l = 0; l < own.levels.size(); ++l) {
    require("block_out_channels", own.levels[l].channels, unet.levels[l].channels, "the U-Net's");
    require("layers_per_block", own.levels[l].layers, unet.levels[l].layers, "the U-Net's");
  }
  if (!text_attentions(own).empty()) same("cross_attention_dim", &UNetSpec::cross_attention_dim);
  if (own.addition_time_embed_dim > 0) {
    same("addition_time_embed_dim", &UNetSpec::addition_time_embed_dim);
    same("projection_class_embeddings_input_dim", &UNetSpec::projection_class_embeddings_input_dim);
  }
  require("conditioning_embedding_out_channels", spec.scale_factor(), vae_scale,
          "the pixels of a latent");
}

}  // namespace troupe::spec
