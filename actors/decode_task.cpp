#include <ATen/ATen.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "actors/job.h"
#include "models/image/pixels.h"
#include "models/image/png.h"
#include "models/image/resize_and_crop.h"

namespace troupe::actors {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string size_text(int width, int height) {
  return std::to_string(width) + "x" + std::to_string(height);
}

/// The text that other tools read: prompt, then what is not wanted, then settings on one line.
std::string parameters_text(const wire::ImageRequest& request, const std::string& prompt,
                            const std::string& model) {
  std::string text = prompt;
  if (!request.negative_prompt.empty()) text += "\nNegative prompt: " + request.negative_prompt;
  text += "\nSteps: " + std::to_string(request.steps);
  text += ", Sampler: " + (request.sampler.empty() ? std::string("checkpoint") : request.sampler);
  text += ", CFG scale: " + number(request.guidance_scale);
  text += ", Seed: " + std::to_string(request.seed);
  text += ", Size: " + size_text(request.output_width, request.output_height);
  if (request.resolution_binning)
    text += ", Computed size: " + size_text(request.width, request.height);
  text += ", Model: " + model;
  return text + ", Version: troupe " TROUPE_VERSION;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Job::picture_text(std::int64_t image) const {
  const auto& request = begin_.request;
  const auto& prompt = request.prompts[image / request.images_per_prompt];
  const auto folder = tools_.stage.spec().folder.filename().string();
  nlohmann::json own = {{"prompt", prompt},
                        {"negative_prompt", request.negative_prompt},
                        {"height", request.output_height},
                        {"width", request.output_width},
                        {"resolution_binning", request.resolution_binning},
                        {"computed_height", request.height},
                        {"computed_width", request.width},
                        {"clean_caption", request.clean_caption},
                        {"steps", request.steps},
                        {"guidance_scale", request.guidance_scale},
                        {"seed", request.seed},
                        {"image", image},
                        {"pictures", request.prompts.size() * request.images_per_prompt},
                        {"sampler", request.sampler},
                        {"method", request.method},
                        {"patches", begin_.patches.size()},
                        {"warmup_steps", request.warmup_steps},
                        {"dtype", request.dtype},
                        {"noise_dtype", request.noise_dtype},
                        {"max_sequence_length", request.max_sequence_length},
                        {"init_latents", request.init_latents_blob != 0},
                        {"model", folder}};
  return {{"parameters", parameters_text(request, prompt, folder)}, {"troupe", own.dump()}};
}

TaskResult Job::decode() {
  TaskResult result;
  const auto tick = [this] { tools_.progress.tick_in(begin_.epoch); };
  const auto& request = begin_.request;
  const auto decoded = tools_.stage.decode(latents_, tick);
  require_finite(decoded, "decoded picture");
  const auto sized = models::resize_and_crop(decoded, request.output_height, request.output_width);
  const auto pictures = models::to_uint8(sized).to(at::kCPU);
  for (std::int64_t i = 0; i < images(); ++i) {
    const auto picture = pictures[i].contiguous();
    auto png = models::encode_png(picture, picture_text(begin_.first_image + i));
    result.blobs.push_back(
        publish("picture", std::move(png), {picture.size(0), picture.size(1), picture.size(2)}));
    tick();
  }
  if (request.want_latents) result.blobs.push_back(publish_latents());
  return result;
}

std::vector<wire::BlobRef> Job::progress_blobs(int step, int patch) {
  const auto& request = begin_.request;
  const bool step_left = patch < 0 || patch + 1 == static_cast<int>(begin_.patches.size());
  const bool asked = request.progress_interval > 0 && (step + 1) % request.progress_interval == 0;
  if (!begin_.decodes || !step_left || !asked || request.progress_content.empty()) return {};
  if (request.progress_content == "latents") return {keep_interim(publish_latents())};
  if (begin_.first_image != 0) return {};  // a preview shows the first picture only
  // A rough picture: the decoder on latents shrunk four-fold costs a sixteenth of the real one.
  const auto small =
      at::avg_pool2d(latents_.slice(0, 0, 1), {4, 4}, {4, 4}, {0, 0}, /*ceil_mode=*/true,
                     /*count_include_pad=*/false);
  const auto tick = [this] { tools_.progress.tick_in(begin_.epoch); };
  const auto picture =
      models::to_uint8(tools_.stage.decode(small, tick)).to(at::kCPU)[0].contiguous();
  auto png = models::encode_png(picture, {});
  return {keep_interim(
      publish("preview", std::move(png), {picture.size(0), picture.size(1), picture.size(2)}))};
}

}  // namespace troupe::actors
