#include "models/spec/pipelines.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "base/format.h"
#include "base/text.h"
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

Pipeline with_controlnets(Pipeline pipeline, const TaskDefaults& defaults) {
  pipeline.name = std::exchange(pipeline.controlnet_pipeline, "");
  pipeline.has_controlnets = true;
  pipeline.defaults = defaults;
  return pipeline;
}

bool is_own_pipeline(const std::string& name) {
  return std::ranges::find(pipelines(), name, &Pipeline::name) != pipelines().end();
}

const Pipeline& pipeline_of(const std::string& name, const std::filesystem::path& index_file) {
  constexpr std::string_view kEnding = "Pipeline";
  std::vector<std::string> names;
  for (const Pipeline& pipeline : pipelines()) {
    if (pipeline.name == name) return pipeline;
    names.push_back(pipeline.name.substr(0, pipeline.name.size() - kEnding.size()));
  }
  for (const Pipeline* pipeline : user_models().pipelines()) {
    if (pipeline->name == name) return *pipeline;
    names.push_back(pipeline->name);
  }
  throw std::runtime_error(
      "[read_model] " + index_file.string() + ": pipeline class \"" + name +
      "\" is not supported (supported, without the ending Pipeline: " + joined(names) + ")");
}

void FitCheck::require(const char* what, std::int64_t wanted, const std::string& of,
                       std::int64_t has) const {
  if (wanted == has) return;
  throw std::runtime_error(
      fmt::format("[read_model] {}: {}{} = {} does not fit {} = {}", model.folder.string(),
                  model.transformer.unet() ? "unet " : "transformer ", what, wanted, of, has));
}

std::int64_t beside_channels(const ModelSpec& spec) {
  const std::int64_t scale = spec.vae.scale_factor();
  switch (spec.inputs.beside) {
    case BesideLatents::none:
      break;
    case BesideLatents::masked_picture_and_pixels:
      return spec.vae.latent_channels + scale * scale;
    case BesideLatents::mask_and_masked_picture:
      return 1 + spec.vae.latent_channels;
    case BesideLatents::control_picture:
      return spec.vae.latent_channels;
    case BesideLatents::given_frames:
      return spec.video_vae.value().frame_factor() + spec.vae.latent_channels;
  }
  return 0;
}

namespace {

void check_beside(const ModelSpec& spec) {
  const std::int64_t wanted = beside_channels(spec), has = spec.transformer.beside_channels;
  if (wanted == has) return;
  throw std::runtime_error(
      fmt::format("[read_model] {}: {} puts {} beside the latents' {}, but in_channels of its "
                  "network is {}",
                  spec.folder.string(), spec.pipeline_class, counted(wanted, "channel"),
                  spec.transformer.in_channels, spec.transformer.in_channels + has));
}

}  // namespace

void check_fit(const ModelSpec& spec) {
  const FitCheck fit(spec);
  std::visit([&](const auto& family) { check_fit(family, fit); }, spec.transformer.family);
  fit.require("in_channels", spec.transformer.in_channels, "vae latent_channels",
              spec.vae.latent_channels);
  check_beside(spec);
}

}  // namespace troupe::spec
