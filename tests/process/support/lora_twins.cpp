#include "tests/process/support/lora_twins.h"

#include <filesystem>
#include <map>
#include <random>
#include <vector>

#include "tests/process/support/models.h"
#include "tests/process/support/tensors.h"

namespace troupe::testing {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRank = 2;
constexpr float kScale = 0.25f;
constexpr const char* kWeightsFile = "diffusion_pytorch_model.safetensors";

using Tensors = std::map<std::string, Latents>;

bool is_product(const spec::TensorEntry& entry) {
  bool in_block = false;
  for (const char* blocks : {"blocks.", "transformer_blocks.", "single_transformer_blocks."})
    in_block = in_block || entry.name.starts_with(blocks);
  return in_block && entry.name.ends_with(".weight") && entry.shape.size() == 2;
}

/// Eighths from -1/2 to 1/2: their products, the sums of two of these and a quarter of it are
/// exact.
Latents eighths(std::mt19937& random, std::int64_t rows, std::int64_t columns) {
  Latents made{{rows, columns}, {}};
  for (std::int64_t i = 0; i < rows * columns; ++i)
    made.data.push_back(static_cast<float>(static_cast<int>(random() % 9) - 4) / 8);
  return made;
}

void add(Latents& weight, const Latents& up, const Latents& down) {
  const auto rows = weight.shape[0], columns = weight.shape[1];
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      float sum = 0;
      for (std::int64_t i = 0; i < kRank; ++i)
        sum += up.data[row * kRank + i] * down.data[i * columns + column];
      weight.data[row * columns + column] += kScale * sum;
    }
  }
}

}  // namespace

LoraTwins::LoraTwins(const std::string& checkpoint_name) {
  const fs::path from = checkpoint(checkpoint_name);
  const fs::path to = merged();
  fs::create_directories(to / "transformer");
  for (const auto& entry : fs::directory_iterator(from)) {
    if (entry.path().filename() != "transformer")
      fs::create_symlink(entry.path(), to / entry.path().filename());
  }
  fs::create_symlink(from / "transformer/config.json", to / "transformer/config.json");

  const auto weights = from / "transformer" / kWeightsFile;
  const TensorFile stored(weights);
  std::mt19937 random(7);
  Tensors sums, halves;
  const auto index = spec::WeightIndex::read_file(weights);
  for (const auto& entry : index.tensors()) {
    auto weight = stored.floats(entry.name);
    if (is_product(entry)) {
      const auto up = eighths(random, entry.shape[0], kRank);
      const auto down = eighths(random, kRank, entry.shape[1]);
      add(weight, up, down);
      const auto name = "transformer." + entry.name.substr(0, entry.name.rfind('.'));
      halves[name + ".lora_A.weight"] = down;
      halves[name + ".lora_B.weight"] = up;
    }
    sums[entry.name] = std::move(weight);
  }
  write_tensors(to / "transformer" / kWeightsFile, sums);
  write_tensors(scratch_ / "lora.safetensors", halves);
}

Lora LoraTwins::lora() const {
  return {scratch_ / "lora.safetensors", kScale};
}

}  // namespace troupe::testing
