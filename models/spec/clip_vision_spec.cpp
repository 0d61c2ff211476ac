#include "models/spec/clip_vision_spec.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/format.h"
#include "models/spec/clip_spec.h"
#include "models/spec/encoder_sizes.h"

namespace troupe::spec {
namespace {

constexpr std::string_view kVisionRoot = "vision_model.";
constexpr std::int64_t kMostPixels = 4096;

ExpectedTensor vision_tensor(const std::string& name, std::vector<std::int64_t> shape) {
  return {name, std::move(shape), {std::string(kVisionRoot) + name}};
}

std::array<double, 3> by_color(const ConfigReader& config, const char* key,
                               std::array<double, 3> fallback) {
  if (!config.has_value(key)) return fallback;
  const auto values = config.numbers(key);
  if (values.size() != fallback.size()) config.refuse(key, "must have a number for each color");
  return {values[0], values[1], values[2]};
}

/// Height and width of an object that has both, or of one number.
std::pair<std::int64_t, std::int64_t> sides_of(const ConfigReader& config, const char* key,
                                               std::int64_t fallback) {
  if (!config.has_value(key)) return {fallback, fallback};
  const auto& value = config.raw(key);
  const auto side = [&](const nlohmann::json& of) {
    if (!of.is_number_integer() || of.get<std::int64_t>() < 1 ||
        of.get<std::int64_t>() > kMostPixels)
      config.refuse(key, fmt::format("must be 1 to {} pixels", kMostPixels));
    return of.get<std::int64_t>();
  };
  if (!value.is_object()) return {side(value), side(value)};
  if (value.size() != 2 || !value.contains("height") || !value.contains("width"))
    config.refuse(key, "must have height and width");
  return {side(value.at("height")), side(value.at("width"))};
}

}  // namespace

ClipVisionSpec read_clip_vision_spec(const ConfigReader& config) {
  ClipVisionSpec spec;
  config.only("model_type", "clip_vision_model");
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxEncoderWidth);
  };
  spec.hidden_size = size("hidden_size", spec.hidden_size);
  spec.intermediate_size = size("intermediate_size", spec.intermediate_size);
  spec.num_hidden_layers =
      config.integer_or("num_hidden_layers", spec.num_hidden_layers, 1, kMaxBlocks);
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.image_size = config.integer_or("image_size", spec.image_size, 1, kMostPixels);
  spec.patch_size = config.integer_or("patch_size", spec.patch_size, 1, kMostPixels);
  spec.layer_norm_eps = config.number_or("layer_norm_eps", spec.layer_norm_eps);
  spec.quick_gelu =
      config.choice_or("hidden_act", "quick_gelu", {"quick_gelu", "gelu"}) == "quick_gelu";
  config.only("num_channels", 3);
  config.harmless({"architectures", "model_type", "torch_dtype", "dtype", "transformers_version",
                   "attention_dropout", "dropout", "initializer_factor", "initializer_range",
                   "projection_dim"});
  config.finish();
  check_encoder_sizes(config, spec);
  if (spec.patch_size > spec.image_size)
    config.refuse("patch_size", fmt::format("must be at most image_size, {}", spec.image_size));
  return spec;
}

std::vector<ExpectedTensor> expected_tensors(const ClipVisionSpec& spec) {
  const std::int64_t width = spec.hidden_size;
  std::vector<ExpectedTensor> list;
  const auto affine = [&](const std::string& name) {
    list.push_back(vision_tensor(name + ".weight", {width}));
    list.push_back(vision_tensor(name + ".bias", {width}));
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    list.push_back(vision_tensor(name + ".weight", {out, in}));
    list.push_back(vision_tensor(name + ".bias", {out}));
  };
  list.push_back(vision_tensor("embeddings.class_embedding", {width}));
  list.push_back(vision_tensor("embeddings.patch_embedding.weight",
                               {width, 3, spec.patch_size, spec.patch_size}));
  list.push_back(vision_tensor("embeddings.position_embedding.weight", {spec.tokens(), width}));
  affine("pre_layrnorm");
  for (std::int64_t block = 0; block + 1 < spec.num_hidden_layers; ++block) {
    const std::string prefix = clip_layer_prefix(block);
    affine(prefix + "layer_norm1");
    affine(prefix + "layer_norm2");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"})
      linear(prefix + "self_attn." + name, width, width);
    linear(prefix + "mlp.fc1", width, spec.intermediate_size);
    linear(prefix + "mlp.fc2", spec.intermediate_size, width);
  }
  return list;
}

bool is_ignorable_clip_vision_tensor(const ClipVisionSpec& spec, std::string_view name) {
  if (name == "logit_scale" || name.starts_with("text_model.") ||
      name == "visual_projection.weight" || name == "text_projection.weight")
    return true;
  if (name.starts_with(kVisionRoot)) name.remove_prefix(kVisionRoot.size());
  return name.starts_with("post_layernorm.") || name.ends_with("embeddings.position_ids") ||
         name.starts_with(clip_layer_prefix(spec.num_hidden_layers - 1));
}

ClipPictureSpec read_clip_picture_spec(const ConfigReader& config) {
  ClipPictureSpec spec;
  config.only("image_processor_type", "CLIPImageProcessor");
  for (const char* key :
       {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"})
    config.only(key, true);
  constexpr int kBicubic = 3;  // of Pillow
  config.only("resample", kBicubic);
  if (const double factor = config.number_or("rescale_factor", 1.0 / 255);
      !(factor > 0.99 / 255 && factor < 1.01 / 255))
    config.refuse("rescale_factor", "must be 1 / 255");
  if (config.has_value("size") && config.raw("size").is_object() &&
      config.raw("size").contains("shortest_edge")) {
    const auto& size = config.raw("size");
    const auto& edge = size.at("shortest_edge");
    if (size.size() != 1 || !edge.is_number_integer() || edge.get<std::int64_t>() < 1 ||
        edge.get<std::int64_t>() > kMostPixels)
      config.refuse("size", fmt::format("must be a shortest_edge of 1 to {}", kMostPixels));
    spec.shortest_edge = edge.get<std::int64_t>();
  } else if (config.has_value("size")) {
    spec.shortest_edge = 0;
    std::tie(spec.height, spec.width) = sides_of(config, "size", 0);
  }
  std::tie(spec.crop_height, spec.crop_width) = sides_of(config, "crop_size", spec.crop_height);
  spec.mean = by_color(config, "image_mean", spec.mean);
  spec.deviation = by_color(config, "image_std", spec.deviation);
  if (std::ranges::any_of(spec.deviation, [](double of) { return !(of > 0 && of < 1e6); }))
    config.refuse("image_std", "must be positive");
  config.harmless({"feature_extractor_type", "processor_class", "data_format", "device",
                   "input_data_format", "return_tensors", "disable_grouping", "default_to_square",
                   "do_pad", "pad_size"});
  config.finish();
  if (spec.shortest_edge > 0 ? std::max(spec.crop_height, spec.crop_width) > spec.shortest_edge
                             : spec.crop_height > spec.height || spec.crop_width > spec.width)
    config.refuse("crop_size", "must be within size");
  return spec;
}

std::uint64_t vision_bytes(const VisionEncoderSpec& vision, std::size_t element) {
  std::uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : expected_tensors(vision.config))
    bytes += entry_of(vision.weights, tensor).elements() * element;
  return bytes;
}

std::uint64_t vision_peak_bytes(const VisionEncoderSpec& vision, std::size_t element) {
  std::uint64_t first = 0, block = 0;
  for (const ExpectedTensor& tensor : expected_tensors(vision.config)) {
    const std::uint64_t own = entry_of(vision.weights, tensor).elements() * element;
    if (!tensor.name.starts_with("encoder.layers.")) first += own;
    if (tensor.name.starts_with(clip_layer_prefix(0))) block += own;
  }
  return std::max(first, block);
}

}  // namespace troupe::spec
