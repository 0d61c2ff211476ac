#include <ATen/ATen.h>

#include <cstdio>
#include <filesystem>

#include "actors/parallel/halo_exchange.h"
#include "actors/stage/job.h"
#include "models/image/pixels.h"
#include "models/image/png.h"
#include "models/image/resize_and_crop.h"
#include "models/spec/scheduler_config.h"
#include "transport/json/request_json.h"

namespace troupe::actors {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// A picture as the job that it is of sees it: its request, and the picture's number there.
struct OwnPicture {
  wire::ImageRequest request;
  std::int64_t image = 0;
};

OwnPicture own_picture(const wire::ImageRequest& all, std::int64_t image) {
  OwnPicture own{all, image};
  own.request.seeds.clear();
  std::int64_t first = 0;
  for (const auto& run : all.seeds) {
    const auto last = first + run.pictures;
    if (first <= image && image < last) {
      const auto prompts = all.prompts.begin();
      own.request.seed = run.seed;
      own.request.prompts = {prompts + first / all.images_per_prompt,
                             prompts + last / all.images_per_prompt};
      own.image = image - first;
    }
    first = last;
  }
  return own;
}

/// Of the pictures [first, last) those that a job begins with: each job's preview shows that one.
std::vector<std::int64_t> first_pictures(const wire::ImageRequest& request, std::int64_t first,
                                         std::int64_t last) {
  std::vector<std::int64_t> found;
  if (request.seeds.empty() && first == 0) found.push_back(0);
  std::int64_t begin = 0;
  for (const auto& run : request.seeds) {
    if (first <= begin && begin < last) found.push_back(begin);
    begin += run.pictures;
  }
  return found;
}

std::string size_text(int width, int height) {
  return std::to_string(width) + "x" + std::to_string(height);
}

/// The text that other tools read: prompt, then what is not wanted, then settings on one line.
std::string parameters_text(const wire::ImageRequest& request, const std::string& prompt, int steps,
                            const std::string& sampler, const std::string& model) {
  std::string text = prompt;
  if (!request.negative_prompt.empty()) text += "\nNegative prompt: " + request.negative_prompt;
  text += "\nSteps: " + std::to_string(steps);
  text += ", Sampler: " + sampler;
  text += ", CFG scale: " + number(request.guidance_scale);
  text += ", Seed: " + std::to_string(request.seed);
  text += ", Size: " + size_text(request.output_width, request.output_height);
  if (request.init_image_bytes > 0) text += ", Denoising strength: " + number(request.strength);
  if (request.resolution_binning)
    text += ", Computed size: " + size_text(request.width, request.height);
  text += ", Model: " + model;
  return text + ", Version: troupe " TROUPE_VERSION;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> Job::picture_text(std::int64_t image) const {
  const auto [request, number] = own_picture(begin_.request, image);
  const auto& prompt = request.prompts[number / request.images_per_prompt];
  const auto& model = tools_.stage.spec();
  const auto folder = model.folder.filename().string();
  const auto sampler = spec::sampler_name(model.scheduler, request.sampler);
  nlohmann::json own = wire::request_json(request, begin_.sampler_steps, begin_.skipped_steps);
  own["prompt"] = prompt;
  own["image"] = number;
  own["pictures"] = request.prompts.size() * request.images_per_prompt;
  own["model"] = folder;
  for (auto& lora : own["loras"])
    lora["file"] = std::filesystem::path(lora["file"].get<std::string>()).filename().string();
  if (!skipped_calls_.empty()) {
    own["step_cache_skipped"] = skipped_calls_.at(image - begin_.first_image);
    own["step_cache_calls"] =
        network_->cache_use().calls * (begin_.cfg.degree == 2 ? 2 : branches());
  }
  return {{"parameters", parameters_text(request, prompt, begin_.sampler_steps, sampler, folder)},
          {"troupe", wire::json_text(own)}};
}

at::Tensor Job::decode_together(const at::Tensor& latents) {
  const auto tick = [this](int, int) { tools_.progress.tick_in(begin_.epoch); };
  const WaitForWork wait_for = [this](const tensor::Work& work) { wait(work); };
  const auto& vae = tools_.stage.vae();
  const bool tiled = begin_.request.vae_tiling;
  if (begin_.groups.vae == 0)
    return tiled ? vae.decode_tiled(latents, tick) : vae.decode(latents, tick);
  const auto decoders = group(begin_.groups.vae);
  if (tiled) return decode_tiles_together(vae, latents, *decoders, wait_for, tick);
  HaloExchange port(*decoders, size_.latent_height, wait_for);
  return port.collect_rows(vae.decode_rows(latents, port, tick));
}

TaskResult Job::decode(int part) {
  TaskResult result;
  const auto tick = [this] { tools_.progress.tick_in(begin_.epoch); };
  const auto& request = begin_.request;
  if (part == 0) collect_latents(begin_.row_decoders);
  if (begin_.vae.degree == 0) return result;
  const auto run = begin_.decode_parts.at(part);
  if (tools_.stage.spec().makes_videos()) return decode_videos(run);
  const auto decoded = decode_together(latents_.slice(0, run.begin, run.end));
  if (begin_.vae.rank != 0) return result;
  require_finite(decoded, "decoded picture");
  const auto sized = models::resize_and_crop(decoded, request.output_height, request.output_width);
  const auto pictures = models::to_uint8(sized).to(at::kCPU);
  for (std::int64_t i = 0; i < pictures.size(0); ++i) {
    const auto picture = pictures[i].contiguous();
    auto png = models::encode_png(picture, picture_text(begin_.first_image + run.begin + i));
    result.blobs.push_back(
        publish("picture", std::move(png), {picture.size(0), picture.size(1), picture.size(2)}));
    tick();
  }
  if (request.want_latents && run.end == images()) result.blobs.push_back(publish_latents());
  return result;
}

std::vector<wire::BlobRef> Job::step_blobs(int step, int patch) {
  const bool left = patch < 0 || patch + 1 == static_cast<int>(begin_.micro_steps.size());
  if (!left) return {};
  auto blobs = progress_blobs(step);
  if (auto boundary = publish_boundary()) blobs.push_back(std::move(*boundary));
  return blobs;
}

std::vector<wire::BlobRef> Job::progress_blobs(int step) {
  const auto& request = begin_.request;
  const bool asked = request.progress_interval > 0 && (step + 1) % request.progress_interval == 0;
  if (!asked || request.progress_content == ProgressContent::none) return {};
  collect_latents(1);
  if (begin_.vae.degree == 0 || begin_.vae.rank != 0) return {};
  if (request.progress_content == ProgressContent::latents)
    return {keep_newest(interim_, publish_latents())};
  std::vector<wire::BlobRef> previews;
  for (const auto image : first_pictures(request, begin_.first_image, begin_.last_image)) {
    const auto own = latents_.slice(0, image - begin_.first_image);
    const auto picture = models::to_uint8(tools_.stage.rough_picture(
                                              own, request.num_frames,
                                              [this] { tools_.progress.tick_in(begin_.epoch); }))
                             .to(at::kCPU)[0]
                             .contiguous();
    auto png = models::encode_png(picture, {});
    previews.push_back(keep_newest(
        interim_,
        publish("preview", std::move(png), {picture.size(0), picture.size(1), picture.size(2)})));
  }
  return previews;
}

}  // namespace troupe::actors
