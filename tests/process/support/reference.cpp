#include "tests/process/support/reference.h"

#include <fstream>
#include <stdexcept>

#include "tests/support/text.h"

namespace troupe::testing {
namespace {

std::string expected_file(const std::string& name) {
  return checkpoint("expected/" + name);
}

}  // namespace

Reference::Reference(const std::string& part)
    : manifest_(nlohmann::json::parse(std::ifstream(expected_file(part + ".json")))),
      cases_(manifest_.at("cases").get<std::vector<nlohmann::json>>()),
      tensors_(expected_file(part + ".safetensors")) {}

const nlohmann::json& Reference::find(const std::string& name) const {
  for (const auto& of : cases_) {
    if (of.at("name") == name) return of;
  }
  throw std::runtime_error("[tests] no case is called " + name);
}

std::string Reference::model_of(const nlohmann::json& of) {
  if (!of.contains("checkpoint")) return TROUPE_SOURCE_DIR "/examples/demo/model";
  const auto name = of.at("checkpoint").get<std::string>();
  if (!of.contains("scheduler")) return checkpoint(name);
  const auto& config = of.at("config");
  const bool own = of.at("scheduler") == "DPMSolverMultistepScheduler" && config.size() == 2 &&
                   config.value("solver_order", 0) == 2;
  if (own) return checkpoint(name);
  auto whole = manifest_.at("beta");
  whole.update(config);
  return variants_.with_scheduler(name, of.at("scheduler"), whole);
}

Submission Reference::submission(const nlohmann::json& of, Parallelism degrees) {
  Submission out;
  auto& request = out.request;
  request.prompts = of.at("prompts").get<std::vector<std::string>>();
  if (!of.at("negative_prompt").is_null())
    request.negative_prompt = of.at("negative_prompt").get<std::string>();
  request.images_per_prompt = of.at("n");
  request.height = of.at("height");
  request.width = of.at("width");
  request.num_frames = of.value("num_frames", 0);
  request.steps = of.at("steps");
  request.guidance_scale = of.at("guidance").get<double>();
  if (of.contains("guidance_2")) request.guidance_scale_2 = of.at("guidance_2").get<double>();
  request.seed = of.at("seed");
  request.max_sequence_length = of.at("max_sequence_length");
  request.want_latents = true;
  request.picture_seeds = of.value("seeds", request.picture_seeds);
  if (of.contains("negative_prompts")) {
    request.negative_prompt.reset();
    request.negative_prompts = of.at("negative_prompts").get<std::vector<std::string>>();
  }
  request.eta = of.value("eta", request.eta);
  request.timesteps = of.value("timesteps", request.timesteps);
  request.sigmas = of.value("sigmas", request.sigmas);
  if (of.contains("embeds")) {
    request.prompts.clear();
    request.prompt_embeds = tensors_.behind(of.at("name").get<std::string>() + ".");
    request.prompt_embeds.erase("latents");
  }
  for (std::size_t i = 0; i < of.value("references", nlohmann::json::array()).size(); ++i) {
    const auto file = bytes(of, "reference" + std::to_string(i)).data;
    request.images.emplace_back(file.begin(), file.end());
  }
  const auto stored = [&](const char* key) {
    return of.contains(key)
               ? read_all(TROUPE_SOURCE_DIR "/tests/fixtures/" + of.at(key).get<std::string>())
               : std::string();
  };
  request.init_image = stored("init_image");
  request.mask_image = stored("mask_image");
  if (of.contains("control_image")) request.control_images = {stored("control_image")};
  if (of.contains("strength")) request.strength = of.at("strength").get<double>();
  if (of.value("last", false)) {
    const auto file = bytes(of, "last").data;
    request.last_image.assign(file.begin(), file.end());
  }
  if (of.contains("patches")) {
    request.method = of.at("method");
    request.num_pipeline_patch = of.at("patches");
    request.warmup_steps = of.at("warmup");
    request.kv = of.at("kv");
    request.group_norm = of.value("group_norm", request.group_norm);
    request.exchange = of.value("exchange", request.exchange);
  }
  out.parallelism = degrees;
  out.model = model_of(of);
  return out;
}

}  // namespace troupe::testing
