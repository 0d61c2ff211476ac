// Writes a model folder with random weights: of PixArt-XL's size in bfloat16 (what is published, as
// far as shapes, names, types and files go), or in float32 for the settings of another folder. No
// picture of it is worth looking at. Names and shapes are those that models/spec expects.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "benchmarks/command_line.h"
#include "models/spec/bert_spec.h"
#include "models/spec/clip_spec.h"
#include "models/spec/config.h"
#include "models/spec/model_plugin.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/t5_spec.h"
#include "models/spec/transformer_spec.h"
#include "models/spec/vae_spec.h"
#include "models/spec/wan_vae_spec.h"
#include "tests/process/support/random_weights.h"
#include "tests/spec/published_configs.h"

namespace fs = std::filesystem;
using nlohmann::json;
using troupe::spec::ExpectedTensor;
using troupe::testing::elements;
using troupe::testing::RandomValues;

namespace {

constexpr std::uint64_t kShardBytes = 5'000'000'000;

void write_file(const fs::path& file, const std::vector<ExpectedTensor>& tensors,
                RandomValues& values) {
  const auto bytes =
      troupe::testing::write_random_weights(file, tensors, troupe::spec::Dtype::bfloat16, values);
  std::printf("%s: %zu tensors, %.2f GB\n", file.c_str(), tensors.size(), double(bytes) / 1e9);
}

void write_sharded(const fs::path& folder, const std::vector<ExpectedTensor>& tensors,
                   RandomValues& values) {
  std::vector<std::vector<ExpectedTensor>> shards(1);
  std::uint64_t total = 0;
  std::uint64_t in_shard = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = elements(tensor) * sizeof(std::uint16_t);
    if (in_shard > 0 && in_shard + bytes > kShardBytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += bytes;
    total += bytes;
  }
  json index = {{"metadata", {{"total_size", total}}}, {"weight_map", json::object()}};
  for (std::size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    write_file(folder / name, shards[i], values);
    for (const auto& tensor : shards[i])
      index["weight_map"][tensor.name] = name;
  }
  std::ofstream(folder / "model.safetensors.index.json") << index.dump(1);
}

void write_text(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream out(file);
  out << text;
  out.close();
  if (!out) throw std::runtime_error(file.string() + ": cannot be written");
}

/// The tensors of a component by the class that model_index.json names for it; none of those that
/// have no weights.
std::vector<ExpectedTensor> tensors_of(const std::string& name,
                                       const troupe::spec::ConfigReader& config) {
  using namespace troupe::spec;
  if (name == "AutoencoderKL") return expected_tensors(read_vae_spec(config));
  if (name == "AutoencoderKLFlux2") return expected_tensors(read_flux2_vae_spec(config));
  if (name == "AutoencoderKLWan" || name == "AutoencoderKLQwenImage")
    return expected_tensors(read_wan_vae_spec(config));
  if (name == "BertModel") return expected_tensors(read_bert_spec(config));
  if (name.starts_with("CLIP"))
    return expected_tensors(read_clip_spec(config, name == "CLIPTextModelWithProjection"));
  if (name.starts_with("Qwen3") || name.starts_with("Qwen2_5_VL"))
    return expected_tensors(read_qwen_spec(name, config));
  if (name.ends_with("T5EncoderModel")) return expected_tensors(read_t5_spec(config));
  return expected_tensors(read_transformer_spec(config, name));
}

/// Settings and tokenizers are `like`'s.
void make_like(const fs::path& like, const fs::path& folder) {
  const auto index = json::parse(std::ifstream(like / "model_index.json"));
  fs::copy(like, folder, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  RandomValues values;
  for (const auto& [component, is] : index.items()) {
    const fs::path own = folder / component;
    if (component == "scheduler" || !is.is_array() || !fs::exists(own / "config.json")) continue;
    for (const auto& file : std::vector(fs::directory_iterator(own), fs::directory_iterator())) {
      if (file.path().string().find(".safetensors") != std::string::npos) fs::remove(file);
    }
    const std::string library = is.at(0);
    const auto file = own / (library == "diffusers" ? "diffusion_pytorch_model.safetensors"
                                                    : "model.safetensors");
    const auto tensors =
        tensors_of(is.at(1), troupe::spec::ConfigReader::read(own / "config.json"));
    const auto bytes =
        troupe::testing::write_random_weights(file, tensors, troupe::spec::Dtype::float32, values);
    std::printf("%s: %zu tensors, %.2f MB\n", file.c_str(), tensors.size(), double(bytes) / 1e6);
  }
}

void make(const fs::path& folder) {
  using namespace troupe;
  write_text(folder / "transformer/config.json", testing::kPixArtXl512Config);
  write_text(folder / "text_encoder/config.json", testing::kT5XxlConfig);
  write_text(folder / "vae/config.json", testing::kSdVaeConfig);
  write_text(folder / "scheduler/scheduler_config.json", testing::kPixArtScheduler);
  fs::copy(TROUPE_SOURCE_DIR "/examples/demo/model/tokenizer", folder / "tokenizer",
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  RandomValues values;
  const auto transformer = spec::PixArtSpec::read(
      spec::ConfigReader(testing::kPixArtXl512Config, "transformer/config.json"));
  write_file(folder / "transformer/diffusion_pytorch_model.safetensors",
             spec::expected_tensors(transformer), values);
  const auto vae =
      spec::read_vae_spec(spec::ConfigReader(testing::kSdVaeConfig, "vae/config.json"));
  write_file(folder / "vae/diffusion_pytorch_model.safetensors", spec::expected_tensors(vae),
             values);
  const auto text =
      spec::read_t5_spec(spec::ConfigReader(testing::kT5XxlConfig, "text_encoder/config.json"));
  write_sharded(folder / "text_encoder", spec::expected_tensors(text), values);
  // Last: a folder without it is not taken for a whole one.
  write_text(folder / "model_index.json", testing::kPixArtModelIndex);
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, like;
  CLI::App app{"Writes a model folder with random weights: of PixArt-XL's size (11 GB)",
               "troupe_make_random_model"};
  app.add_option("FOLDER", folder, "Made if need be")
      ->required()
      ->check(troupe::bench::not_empty());
  std::vector<std::string> plugins;
  app.add_option("--model-plugin", plugins, "Shared library that knows the model of --like")
      ->check(CLI::ExistingFile);
  app.add_option("--like", like, "Or with the settings of this folder, which needs no weights")
      ->check(CLI::ExistingDirectory);
  return troupe::bench::run_program(app, argc, argv, [&] {
    for (const auto& file : plugins)
      troupe::spec::open_model_plugin(file);
    like.empty() ? make(folder) : make_like(like, folder);
    return 0;
  });
}
