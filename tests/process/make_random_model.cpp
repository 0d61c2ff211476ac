// Writes a model folder of PixArt-XL's size with random weights in bfloat16: what is published, as
// far as shapes, names, types and files go, and no picture worth looking at. Names and shapes are
// those that models/spec expects.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "models/spec/config.h"
#include "models/spec/expected_tensors.h"
#include "models/spec/pixart_spec.h"
#include "models/spec/t5_spec.h"
#include "models/spec/vae_spec.h"
#include "tests/spec/published_configs.h"

namespace fs = std::filesystem;
using nlohmann::json;
using troupe::spec::ExpectedTensor;

namespace {

constexpr std::size_t kPool = std::size_t{1} << 21;
constexpr std::uint64_t kShardBytes = 5'000'000'000;

std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Runs of a few million normal values, scaled; another place in them for each chunk.
class RandomValues {
 public:
  RandomValues() : standard_(kPool), values_(kPool) {
    std::normal_distribution<float> normal;
    for (auto& value : standard_)
      value = normal(generator_);
  }

  void write(std::ostream& out, std::uint64_t count, float mean, float deviation) {
    for (std::size_t i = 0; i < kPool; ++i) {
      values_[i] = to_bfloat16(mean + deviation * standard_[i]);
    }
    while (count > 0) {
      const std::size_t from = generator_() % kPool;
      const auto run = std::min<std::uint64_t>(count, kPool - from);
      out.write(reinterpret_cast<const char*>(values_.data() + from),
                static_cast<std::streamsize>(run * sizeof(std::uint16_t)));
      count -= run;
    }
  }

 private:
  std::mt19937 generator_{1};
  std::vector<float> standard_;
  std::vector<std::uint16_t> values_;
};

std::uint64_t elements(const ExpectedTensor& tensor) {
  std::uint64_t count = 1;
  for (const auto extent : tensor.shape)
    count *= static_cast<std::uint64_t>(extent);
  return count;
}

/// Sizes that keep a deep network's states finite and alive.
void write_tensor(std::ostream& out, const ExpectedTensor& tensor, RandomValues& values) {
  const bool vector = tensor.shape.size() == 1;
  const bool scale = vector && tensor.name.ends_with("weight");
  const double fan_in = double(elements(tensor)) / double(tensor.shape.front());
  const float deviation = vector ? 0.02f : static_cast<float>(1 / std::sqrt(fan_in));
  values.write(out, elements(tensor), scale ? 1.0f : 0.0f, deviation);
}

void write_file(const fs::path& file, const std::vector<ExpectedTensor>& tensors,
                RandomValues& values) {
  json header;
  std::uint64_t end = 0;
  for (const auto& tensor : tensors) {
    const auto begin = end;
    end += elements(tensor) * sizeof(std::uint16_t);
    header[tensor.name] = {
        {"dtype", "BF16"}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text;
  for (const auto& tensor : tensors)
    write_tensor(out, tensor, values);
  out.close();
  if (!out) throw std::runtime_error(file.string() + ": cannot be written");
  std::printf("%s: %zu tensors, %.2f GB\n", file.c_str(), tensors.size(), double(end) / 1e9);
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

void make(const fs::path& folder) {
  using namespace troupe;
  write_text(folder / "transformer/config.json", testing::kPixArtXl512Config);
  write_text(folder / "text_encoder/config.json", testing::kT5XxlConfig);
  write_text(folder / "vae/config.json", testing::kSdVaeConfig);
  write_text(folder / "scheduler/scheduler_config.json", testing::kPixArtScheduler);
  fs::copy(TROUPE_SOURCE_DIR "/examples/demo/model/tokenizer", folder / "tokenizer",
           fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  RandomValues values;
  const auto transformer = spec::read_pixart_spec(
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
  if (argc != 2) {
    std::fprintf(stderr, "usage: troupe_make_random_model FOLDER\n");
    return 2;
  }
  try {
    make(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "make-random-model: %s\n", error.what());
    return 1;
  }
  return 0;
}
