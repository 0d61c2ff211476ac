#include "models/spec/qwen_vision_spec.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/format.h"
#include "models/spec/encoder_sizes.h"
#include "models/spec/json_text.h"
#include "models/spec/resolution_bins.h"

namespace troupe::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostPixels = std::int64_t{1} << 26;
constexpr double kByteScale = 1.0 / 255;

/// Reads `vision_config` alone.
QwenVisionSpec read_tower(const ConfigReader& config) {
  QwenVisionSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxEncoderWidth);
  };
  config.choice_or("model_type", "qwen2_5_vl", {"qwen2_5_vl", "qwen2_5_vl_vision"});
  spec.depth = config.integer_or("depth", spec.depth, 1, kMaxBlocks);
  spec.hidden_size = size("hidden_size", spec.hidden_size);
  spec.intermediate_size = size("intermediate_size", spec.intermediate_size);
  spec.num_heads = size("num_heads", spec.num_heads);
  spec.out_hidden_size = size("out_hidden_size", spec.out_hidden_size);
  spec.patch_size = config.integer_or("patch_size", spec.patch_size, 1, 256);
  spec.temporal_patch_size =
      config.integer_or("temporal_patch_size", spec.temporal_patch_size, 1, 16);
  spec.spatial_merge_size = config.integer_or("spatial_merge_size", spec.spatial_merge_size, 1, 16);
  spec.window_size = size("window_size", spec.window_size);
  if (config.has_value("fullatt_block_indexes"))
    spec.fullatt_block_indexes = config.integers("fullatt_block_indexes");
  if (config.has_value("rope_parameters")) {
    const auto& rope = config.raw("rope_parameters");
    if (!rope.is_object() || rope.value("rope_type", "axial") != "axial")
      config.refuse("rope_parameters", "must be an object of the type axial");
    spec.rope_theta = rope.value("rope_theta", spec.rope_theta);
  }
  config.only("hidden_act", "silu");
  config.only("in_channels", 3);
  config.only("in_chans", 3);
  config.only("spatial_patch_size", spec.patch_size);
  config.harmless({"architectures", "chunk_size_feed_forward", "dtype", "id2label",
                   "initializer_range", "is_encoder_decoder", "label2id", "name_or_path",
                   "output_attentions", "output_hidden_states", "problem_type", "return_dict",
                   "rope_parameters", "tokens_per_second", "torch_dtype", "transformers_version"});
  config.finish();
  if (spec.hidden_size % spec.num_heads != 0 || spec.hidden_size / spec.num_heads % 4 != 0)
    config.refuse("num_heads", "must leave heads of a multiple of 4 channels");
  if (spec.window_size < spec.token_side())
    config.refuse("window_size",
                  fmt::format("must be at least {}, a token's side", spec.token_side()));
  return spec;
}

/// Reads what the image processor does: `processor_config.json` has it in an object of its own,
/// older folders in `preprocessor_config.json`.
void read_processor(const fs::path& folder, QwenVisionSpec& spec) {
  const fs::path now = folder / "processor_config.json",
                 before = folder / "preprocessor_config.json";
  auto config = ConfigReader::read(is_file(now) && !is_file(before) ? now : before);
  if (config.has_value("image_processor"))
    config = ConfigReader(config.raw("image_processor").dump(), config.file());
  const auto pixels = [&config](const char* key, const char* in_size, std::int64_t fallback) {
    if (config.has_value("size")) {
      const auto& size = config.raw("size");
      if (size.is_object() && size.contains(in_size) && size[in_size].is_number_integer())
        fallback = size[in_size].get<std::int64_t>();
    }
    return config.has_value(key) ? config.integer(key, 1, kMostPixels) : fallback;
  };
  spec.min_pixels = pixels("min_pixels", "shortest_edge", spec.min_pixels);
  spec.max_pixels = pixels("max_pixels", "longest_edge", spec.max_pixels);
  if (spec.min_pixels < 1 || spec.max_pixels > kMostPixels || spec.min_pixels > spec.max_pixels)
    config.refuse("size", "must be pixels from the fewest to the most");
  for (const auto& [key, values] :
       {std::pair{"image_mean", &spec.image_mean}, std::pair{"image_std", &spec.image_std}}) {
    if (config.has_value(key)) *values = config.numbers(key);
    if (values->size() != 3) config.refuse(key, "must be three numbers");
  }
  if (std::ranges::any_of(spec.image_std, [](double value) { return !(value > 0); }))
    config.refuse("image_std", "must be above 0");
  for (const char* key : {"do_resize", "do_rescale", "do_normalize"})
    config.only(key, true);
  config.only("resample", 3);  // bicubic
  if (std::abs(config.number_or("rescale_factor", kByteScale) - kByteScale) > 1e-9)
    config.refuse("rescale_factor", "must be 1 / 255");
  config.only("patch_size", spec.patch_size);
  config.only("temporal_patch_size", spec.temporal_patch_size);
  config.only("merge_size", spec.spatial_merge_size);
}

std::vector<std::int64_t> read_sections(const ConfigReader& config, std::int64_t head_dim,
                                        std::vector<std::int64_t> sections) {
  const ConfigReader text = config.has_value("text_config")
                                ? ConfigReader(config.raw("text_config").dump(), config.file())
                                : config;
  for (const char* object : {"rope_scaling", "rope_parameters"}) {
    if (!text.has_value(object)) continue;
    const auto& rope = text.raw(object);
    if (!rope.is_object() || !rope.contains("mrope_section")) continue;
    const ConfigReader own(rope.dump(), config.file());
    sections = own.integers("mrope_section");
  }
  const bool fits =
      sections.size() == 3 &&
      std::ranges::all_of(sections, [](std::int64_t one) { return one >= 0; }) &&
      std::accumulate(sections.begin(), sections.end(), std::int64_t{0}) == head_dim / 2;
  if (!fits) {
    text.refuse(
        "rope_scaling",
        fmt::format("must have an mrope_section of three numbers that add up to {}", head_dim / 2));
  }
  return sections;
}

}  // namespace

QwenVisionSpec read_qwen_vision_spec(const ConfigReader& config, const fs::path& processor,
                                     std::int64_t head_dim, std::int64_t hidden_size) {
  if (!config.has_value("vision_config"))
    config.refuse("vision_config",
                  "is missing, and the pipeline shows pictures to the text encoder");
  QwenVisionSpec spec = read_tower(ConfigReader(config.raw("vision_config").dump(), config.file()));
  if (spec.out_hidden_size != hidden_size)
    config.refuse("vision_config",
                  fmt::format("has out_hidden_size = {}, which must be hidden_size, {}",
                              spec.out_hidden_size, hidden_size));
  spec.image_token_id = config.integer_or("image_token_id", spec.image_token_id, 0);
  spec.mrope_section = read_sections(config, head_dim, spec.mrope_section);
  read_processor(processor, spec);
  return spec;
}

std::string qwen_vision_block_prefix(std::int64_t block) {
  return fmt::format("visual.blocks.{}.", block);
}

std::vector<ExpectedTensor> expected_tensors(const QwenVisionSpec& spec) {
  std::vector<ExpectedTensor> list;
  const std::int64_t width = spec.hidden_size;
  const auto linear = [&list](const std::string& name, std::int64_t in, std::int64_t out) {
    list.push_back({name + ".weight", {out, in}});
    list.push_back({name + ".bias", {out}});
  };
  list.push_back({"visual.patch_embed.proj.weight",
                  {width, 3, spec.temporal_patch_size, spec.patch_size, spec.patch_size}});
  for (std::int64_t block = 0; block < spec.depth; ++block) {
    const std::string prefix = qwen_vision_block_prefix(block);
    list.push_back({prefix + "norm1.weight", {width}});
    list.push_back({prefix + "norm2.weight", {width}});
    linear(prefix + "attn.qkv", width, 3 * width);
    linear(prefix + "attn.proj", width, width);
    linear(prefix + "mlp.gate_proj", width, spec.intermediate_size);
    linear(prefix + "mlp.up_proj", width, spec.intermediate_size);
    linear(prefix + "mlp.down_proj", spec.intermediate_size, width);
  }
  const std::int64_t merged = width * spec.spatial_merge_size * spec.spatial_merge_size;
  list.push_back({"visual.merger.ln_q.weight", {width}});
  linear("visual.merger.mlp.0", merged, merged);
  linear("visual.merger.mlp.2", merged, spec.out_hidden_size);
  return list;
}

PixelSize seen_size(const QwenVisionSpec& spec, PixelSize picture) {
  const auto unit = static_cast<double>(spec.token_side());
  const auto height = static_cast<double>(picture.height);
  const auto width = static_cast<double>(picture.width);
  const auto sides = [unit](double rows, double columns) {
    return PixelSize{static_cast<std::int64_t>(rows * unit),
                     static_cast<std::int64_t>(columns * unit)};
  };
  // Halves go to the even number, as Python rounds.
  const PixelSize near = sides(std::nearbyint(height / unit), std::nearbyint(width / unit));
  const std::int64_t area = near.height * near.width;
  if (area > spec.max_pixels) {
    const double factor = std::sqrt(height * width / static_cast<double>(spec.max_pixels));
    return sides(std::max(1.0, std::floor(height / factor / unit)),
                 std::max(1.0, std::floor(width / factor / unit)));
  }
  if (area < spec.min_pixels) {
    const double factor = std::sqrt(static_cast<double>(spec.min_pixels) / (height * width));
    return sides(std::ceil(height * factor / unit), std::ceil(width * factor / unit));
  }
  return near;
}

}  // namespace troupe::spec
