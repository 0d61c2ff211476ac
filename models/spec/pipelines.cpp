#include "models/spec/pipelines.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "models/spec/model_plugin.h"

namespace troupe::spec {
namespace {

std::vector<Pipeline> of_all_families() {
  std::vector<Pipeline> all;
  each_family([&]<class Family>(std::type_identity<Family>) {
    for (Pipeline& pipeline : Family::pipelines()) {
      pipeline.transformers.assign(std::begin(Family::kClasses), std::end(Family::kClasses));
      all.push_back(std::move(pipeline));
    }
  });
  return all;
}

const std::vector<Pipeline>& pipelines() {
  static const std::vector<Pipeline> all = of_all_families();
  return all;
}

}  // namespace

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

bool is_own_pipeline(const std::string& name) {
  return std::ranges::find(pipelines(), name, &Pipeline::name) != pipelines().end();
}

const Pipeline& pipeline_of(const std::string& name, const std::filesystem::path& index_file) {
  std::vector<std::string> names;
  for (const Pipeline& pipeline : pipelines()) {
    if (pipeline.name == name) return pipeline;
    names.push_back(pipeline.name);
  }
  for (const Pipeline* pipeline : user_models().pipelines()) {
    if (pipeline->name == name) return *pipeline;
    names.push_back(pipeline->name);
  }
  throw std::runtime_error("[read_model] " + index_file.string() + ": pipeline class \"" + name +
                           "\" is not supported (supported: " + joined(names) + ")");
}

}  // namespace troupe::spec
