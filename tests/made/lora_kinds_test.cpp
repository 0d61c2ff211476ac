#include <ATen/ATen.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/lora/lora_weights.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;
using models::LoraWeights;
using models::WeightStore;

namespace {

constexpr double kBound = 3e-6;  // of the largest value of a weight

const spec::WeightIndex& weights_of(const spec::ModelSpec& model, const std::string& component) {
  for (const auto& encoder : model.text_encoders) {
    if (encoder.component == component) return encoder.weights;
  }
  return model.transformer_weights;
}

/// A file, the model that it is for, and the weights that diffusers or PEFT makes of both.
struct Case {
  std::string name;
  spec::ModelSpec model;
  std::filesystem::path file;
  double scale = 1;
  std::size_t unused = 0;

  LoraWeights weights() const { return LoraWeights({{file, scale}}, model); }
  WeightStore expected() const {
    return WeightStore(
        spec::WeightIndex::read_file(kMade / "lora-kinds" / name / "expected.safetensors"));
  }
};

std::vector<Case> cases() {
  std::vector<Case> all;
  std::ifstream file(kMade / "lora-kinds/cases.json");
  for (const auto& of : nlohmann::json::parse(file)) {
    const auto name = of.at("name").get<std::string>();
    all.push_back({name, spec::read_model_spec(of.at("folder").get<std::string>()),
                   kMade / "lora-kinds" / name / of.at("file").get<std::string>(),
                   of.at("scale").get<double>(), of.at("unused").get<std::size_t>()});
  }
  return all;
}

double error(const at::Tensor& made, const at::Tensor& wanted) {
  return ((made - wanted).abs().max() / wanted.abs().max()).item<double>();
}

/// Splits "text_encoder/NAME".
std::pair<std::string, std::string> component_and_tensor(const std::string& name) {
  const auto slash = name.find('/');
  return {name.substr(0, slash), name.substr(slash + 1)};
}

at::Tensor stored(const spec::ModelSpec& model, const std::string& component,
                  const std::string& tensor) {
  const WeightStore store(weights_of(model, component));
  return store.get(tensor, store.index().at(tensor).shape, at::kFloat).clone();
}

}  // namespace

TEST_CASE("files of every kind and naming make the weights that diffusers and PEFT make of them") {
  if (lacks_made_fixtures()) return;
  double worst = 0;
  const auto all = cases();
  CHECK(all.size() >= 35);
  for (const Case& of : all) {
    CAPTURE(of.name);
    const LoraWeights loras = of.weights();
    const WeightStore expected = of.expected();
    for (const auto& entry : expected.index().tensors()) {
      CAPTURE(entry.name);
      const auto [component, tensor] = component_and_tensor(entry.name);
      REQUIRE(loras.touches(component, tensor));
      const auto made = loras.add(component, tensor, stored(of.model, component, tensor));
      const double off = error(made, expected.get(entry.name));
      CHECK(off <= kBound);
      worst = std::max(worst, off);
    }
    const auto read = spec::read_lora_spec(of.file, of.model);
    std::set<std::pair<std::string, std::string>> touched;
    for (const auto& layer : read.layers) {
      for (const auto& part : layer.parts)
        touched.emplace(layer.component, part.tensor);
    }
    CHECK(touched.size() == expected.index().tensors().size());
    CHECK(read.unused.empty() == (of.unused == 0));
    if (of.unused > 0)
      CHECK(read.unused.find(": " + std::to_string(of.unused) + " of ") != std::string::npos);
  }
  MESSAGE(all.size() << " files, weights within " << worst << " of their largest value");
}

TEST_CASE("a part of a weight gets what the whole weight gets there") {
  if (lacks_made_fixtures()) return;
  for (const Case& of : cases()) {
    CAPTURE(of.name);
    const LoraWeights loras = of.weights();
    const WeightStore expected = of.expected();
    for (const auto& entry : expected.index().tensors()) {
      CAPTURE(entry.name);
      const auto [component, tensor] = component_and_tensor(entry.name);
      const at::Tensor weight = stored(of.model, component, tensor);
      if (weight.dim() != 2) continue;
      const at::Tensor whole = loras.add(component, tensor, weight);
      const std::int64_t row = weight.size(0) / 3, column = weight.size(1) / 2;
      const auto rows = weight.slice(0, row, 2 * row), columns = weight.slice(1, column);
      CHECK(error(loras.add(component, tensor, rows, row), whole.slice(0, row, 2 * row)) <= 1e-6);
      CHECK(error(loras.add(component, tensor, columns, 0, column), whole.slice(1, column)) <=
            1e-6);
    }
  }
}
