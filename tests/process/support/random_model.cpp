#include "tests/process/support/random_model.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/spec/transformer_spec.h"
#include "tests/process/support/models.h"
#include "tests/process/support/random_weights.h"

namespace troupe::testing {
namespace fs = std::filesystem;

RandomModel::RandomModel(const TransformerSize& size) {
  const fs::path from = checkpoint("tiny-pixart");
  for (const char* part : {"tokenizer", "text_encoder", "scheduler", "vae", "model_index.json"})
    fs::create_symlink(from / part, scratch_.path / part);
  auto config = nlohmann::json::parse(std::ifstream(from / "transformer/config.json"));
  config["num_layers"] = size.blocks;
  config["num_attention_heads"] = size.heads;
  config["attention_head_dim"] = size.head_dim;
  config["cross_attention_dim"] = size.heads * size.head_dim;
  fs::create_directory(scratch_.path / "transformer");
  const auto file = scratch_.path / "transformer/config.json";
  std::ofstream(file) << config.dump(1);
  RandomValues values;
  write_random_weights(scratch_.path / "transformer/diffusion_pytorch_model.safetensors",
                       spec::expected_tensors(spec::TransformerSpec(
                           spec::PixArtSpec::read(spec::ConfigReader(config.dump(), file)))),
                       spec::Dtype::float32, values);
}

const RandomModel& odd_model() {
  static const RandomModel model({.blocks = 8, .heads = 5, .head_dim = 8});
  return model;
}

const RandomModel& deep_model() {
  static const RandomModel model({.blocks = 16, .heads = 5, .head_dim = 8});
  return model;
}

}  // namespace troupe::testing
