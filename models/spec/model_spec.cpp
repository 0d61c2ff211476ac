#include "models/spec/model_spec.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "models/spec/config.h"
#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSchedulerBytes = 16U << 20U;

struct Component {
  std::string key;
  std::vector<std::string> classes;
};

const std::vector<Component>& pixart_components() {
  static const std::vector<Component> components = {
      {"transformer", {"PixArtTransformer2DModel", "Transformer2DModel"}},
      {"text_encoder", {"T5EncoderModel"}},
      {"tokenizer", {"T5Tokenizer", "T5TokenizerFast"}},
      {"vae", {"AutoencoderKL"}},
  };
  return components;
}

[[noreturn]] void fail(const fs::path& where, const std::string& why) {
  throw std::runtime_error("[read_model] " + where.string() + ": " + why);
}

std::string class_of(const ConfigReader& index, const std::string& key) {
  if (!index.has_value(key)) fail(index.file(), "component \"" + key + "\" is missing");
  const auto& value = index.raw(key);
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) {
    index.refuse(key, "must be a pair of library and class");
  }
  return value[1].get<std::string>();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Optional components that are switched off are written as a pair of nulls.
void accept_absent_components(const ConfigReader& index) {
  const auto absent = nlohmann::json::array({nullptr, nullptr});
  for (const char* key : {"feature_extractor", "image_encoder", "safety_checker"}) {
    index.only(key, absent);
  }
}

/// Checks the class that a component's own config names, where it names one.
void check_class(const ConfigReader& config, const std::vector<std::string>& allowed) {
  if (!config.has("_class_name")) return;
  const std::string name = config.text("_class_name");
  if (std::ranges::find(allowed, name) == allowed.end()) {
    config.refuse("_class_name", "is not supported (supported: " + joined(allowed) + ")");
  }
}

TokenizerSpec find_tokenizer(const fs::path& folder) {
  TokenizerSpec spec;
  const auto if_there = [&folder](const char* name) -> std::optional<fs::path> {
    const fs::path file = folder / name;
    return fs::is_regular_file(file) ? std::optional(file) : std::nullopt;
  };
  spec.spiece_model = if_there("spiece.model");
  spec.tokenizer_json = if_there("tokenizer.json");
  spec.tokenizer_config = if_there("tokenizer_config.json");
  if (!spec.spiece_model && !spec.tokenizer_json) {
    fail(folder, "has neither spiece.model nor tokenizer.json");
  }
  return spec;
}

void check_fit(const ModelSpec& spec) {
  if (spec.transformer.caption_channels != spec.text_encoder.d_model) {
    fail(spec.folder,
         "transformer caption_channels = " + std::to_string(spec.transformer.caption_channels) +
             " does not fit text_encoder d_model = " + std::to_string(spec.text_encoder.d_model));
  }
  if (spec.transformer.in_channels != spec.vae.latent_channels) {
    fail(spec.folder,
         "transformer in_channels = " + std::to_string(spec.transformer.in_channels) +
             " does not fit vae latent_channels = " + std::to_string(spec.vae.latent_channels));
  }
}

}  // namespace

ModelSpec read_model_spec(const fs::path& folder) {
  if (!fs::is_directory(folder)) fail(folder, "no such folder");
  const fs::path index_file = folder / "model_index.json";
  if (!fs::is_regular_file(index_file)) fail(folder, "has no model_index.json");
  const ConfigReader index = ConfigReader::read(index_file);

  ModelSpec spec;
  spec.folder = folder;
  spec.pipeline_class = index.text_or("_class_name", "");
  if (spec.pipeline_class != "PixArtAlphaPipeline") {
    fail(index_file, "pipeline class \"" + spec.pipeline_class +
                         "\" is not supported (supported: PixArtAlphaPipeline)");
  }
  std::map<std::string, std::string> classes;
  for (const auto& [key, allowed] : pixart_components()) {
    const std::string name = classes[key] = class_of(index, key);
    if (std::ranges::find(allowed, name) == allowed.end()) {
      fail(index_file, "class \"" + name + "\" of component \"" + key +
                           "\" is not supported (supported: " + joined(allowed) + ")");
    }
    if (!fs::is_directory(folder / key)) fail(folder / key, "component folder is missing");
  }
  spec.scheduler.class_name = class_of(index, "scheduler");
  accept_absent_components(index);
  index.finish();

  spec.scheduler.file = folder / "scheduler" / "scheduler_config.json";
  spec.scheduler.config = standard_json(read_text_file(spec.scheduler.file, kMaxSchedulerBytes));
  if (!parse_json(spec.scheduler.config, spec.scheduler.file).is_object()) {
    fail(spec.scheduler.file, "is not a JSON object");
  }
  spec.tokenizer = find_tokenizer(folder / "tokenizer");

  const auto transformer = ConfigReader::read(folder / "transformer" / "config.json");
  check_class(transformer, {"PixArtTransformer2DModel", "Transformer2DModel"});
  spec.transformer = read_pixart_spec(transformer);
  spec.text_encoder = read_t5_spec(ConfigReader::read(folder / "text_encoder" / "config.json"));
  const auto vae = ConfigReader::read(folder / "vae" / "config.json");
  check_class(vae, {"AutoencoderKL"});
  spec.vae = read_vae_spec(vae);
  check_fit(spec);

  constexpr std::string_view kDiffusers[] = {"diffusion_pytorch_model", "model"};
  constexpr std::string_view kTransformers[] = {"model"};
  spec.transformer_weights = WeightIndex::read_folder(folder / "transformer", kDiffusers);
  spec.text_encoder_weights = WeightIndex::read_folder(folder / "text_encoder", kTransformers);
  spec.vae_weights = WeightIndex::read_folder(folder / "vae", kDiffusers);
  check_tensors(spec.transformer_weights, expected_tensors(spec.transformer),
                is_ignorable_pixart_tensor);
  check_tensors(spec.text_encoder_weights, expected_tensors(spec.text_encoder),
                is_ignorable_t5_tensor);
  check_tensors(spec.vae_weights, expected_tensors(spec.vae), is_ignorable_vae_tensor);
  return spec;
}

WeightBytes weight_bytes(const ModelSpec& spec) {
  WeightBytes bytes;
  const auto& weights = spec.transformer_weights;
  bytes.embed = weights.bytes("pos_embed.proj.") + weights.bytes("caption_projection.linear_");
  bytes.shared = weights.bytes("adaln_single.");
  for (std::int64_t block = 0; block < spec.transformer.num_layers; ++block) {
    bytes.blocks.push_back(weights.bytes(pixart_block_prefix(block)));
  }
  bytes.final = weights.bytes("scale_shift_table") + weights.bytes("proj_out.");
  for (const ExpectedTensor& tensor : expected_tensors(spec.text_encoder)) {
    bytes.text_encoder += entry_of(spec.text_encoder_weights, tensor).bytes();
  }
  bytes.text_encoder_peak =
      entry_of(spec.text_encoder_weights, expected_tensors(spec.text_encoder).front()).bytes();
  for (std::int64_t block = 0; block < spec.text_encoder.num_layers; ++block) {
    bytes.text_encoder_peak =
        std::max(bytes.text_encoder_peak, spec.text_encoder_weights.bytes(t5_block_prefix(block)));
  }
  for (const ExpectedTensor& tensor : expected_tensors(spec.vae)) {
    bytes.vae_decoder += entry_of(spec.vae_weights, tensor).bytes();
  }
  return bytes;
}

}  // namespace troupe::spec
