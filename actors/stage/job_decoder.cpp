#include "actors/stage/job_decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "actors/parallel/halo_exchange.h"
#include "base/text.h"
#include "models/image/frames.h"
#include "models/image/png.h"
#include "models/image/resize.h"
#include "models/spec/hub.h"
#include "models/spec/scheduler_config.h"
#include "models/text/unicode.h"
#include "transport/json/request_json.h"

namespace troupe::actors {
namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// A picture as the job that it is of sees it: its request, with the picture's own seed, prompt and
/// negative prompt, and where it stands among the pictures that its seed makes.
struct OwnPicture {
  wire::ImageRequest request;
  std::string prompt;
  std::int64_t image = 0;
  std::int64_t of_seed = 0;  // how many these are
};

OwnPicture own_picture(const wire::ImageRequest& all, std::int64_t image) {
  const auto prompts = static_cast<std::int64_t>(all.prompts.size());
  OwnPicture own{all, all.prompts.at(image / all.images_per_prompt), image,
                 prompts * all.images_per_prompt};
  auto& request = own.request;
  std::int64_t first = 0;
  for (const auto& run : all.seeds) {
    if (first <= image && image < first + run.pictures) {
      request.seed = run.seed;
      own.image = image - first;
      own.of_seed = run.pictures;
    }
    first += run.pictures;
  }
  if (!all.negative_prompts.empty()) request.negative_prompt = all.negative_prompts.at(image);
  first = 0;
  for (const auto pictures : all.pictures_of_jobs) {
    const auto last = first + pictures;
    if (first <= image && image < last) {
      const auto begin = all.prompts.begin();
      request.prompts = {begin + first / all.images_per_prompt,
                         begin + last / all.images_per_prompt};
    }
    first = last;
  }
  request.seeds.clear();
  request.pictures_of_jobs.clear();
  return own;
}

/// Returns, of the pictures [first, last), the first picture of each job, which is the one that the
/// job's preview shows.
std::vector<std::int64_t> first_pictures(const wire::ImageRequest& request, std::int64_t first,
                                         std::int64_t last) {
  std::vector<std::int64_t> found;
  if (request.pictures_of_jobs.empty() && first == 0) found.push_back(0);
  std::int64_t begin = 0;
  for (const auto pictures : request.pictures_of_jobs) {
    if (first <= begin && begin < last) found.push_back(begin);
    begin += pictures;
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
  if (const auto negative = request.negative_prompt.value_or(""); !negative.empty())
    text += "\nNegative prompt: " + negative;
  text += "\nSteps: " + std::to_string(steps);
  text += ", Sampler: " + sampler;
  text += ", CFG scale: " + number(request.guidance_scale.value());
  text += ", Seed: " + std::to_string(request.seed);
  text += ", Size: " + size_text(request.output_width, request.output_height);
  if (request.init_image_bytes > 0)
    text += ", Denoising strength: " + number(request.strength.value());
  if (request.resolution_binning)
    text += ", Computed size: " + size_text(request.width, request.height);
  text += ", Model: " + wire::setting_text(model);
  return text + ", Version: troupe " TROUPE_VERSION;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> JobDecoder::picture_text(
    std::int64_t image) const {
  const auto& begin = job_.begin;
  const auto [request, prompt, number, of_seed] = own_picture(begin.request, image);
  const auto& model = job_.tools.stage.spec();
  const auto folder = models::valid_utf8(spec::model_label(model.folder.string()));
  const auto sampler = spec::sampler_name(model.scheduler, request.sampler);
  nlohmann::json own = wire::request_json(request, begin.sampler_steps, begin.skipped_steps);
  own["prompt"] = prompt;
  own["image"] = number;
  own["pictures"] = of_seed;
  own["model"] = folder;
  for (const char* list : {"loras", "embeddings"})
    for (auto& one : own[list])
      one["file"] = models::valid_utf8(last_name(one["file"].get<std::string>()));
  for (auto& net : own["controlnets"])
    net = models::valid_utf8(spec::model_label(net.get<std::string>()));
  if (const auto calls = step_.calls_of(image - begin.first_image)) {
    own["step_cache_skipped"] = calls->skipped;
    own["step_cache_calls"] = calls->all;
  }
  return {{"parameters", parameters_text(request, prompt, begin.sampler_steps, sampler, folder)},
          {"troupe", wire::json_text(own)}};
}

TaskResult JobDecoder::decode(int part) {
  const auto& begin = job_.begin;
  if (part == 0) transfers_.collect_latents(begin.row_decoders);
  if (begin.vae.degree == 0) return {};
  const auto run = begin.decode_parts.at(part);
  const bool latents_alone = begin.request.output_type == OutputType::latent;
  TaskResult result;
  if (!latents_alone) {
    result.blobs =
        job_.tools.stage.spec().makes_videos() ? decode_videos(run) : decode_pictures(run);
  }
  const bool last = run.end == job_.images();
  if (begin.vae.rank == 0 && (begin.request.want_latents || latents_alone) && last) {
    if (latents_alone) job_.require_finite(latents_.all(), "final latents");
    result.blobs.push_back(latents_.publish());
  }
  return result;
}

at::Tensor JobDecoder::decode_together(const at::Tensor& latents) {
  const auto tick = [this](int, int) { job_.tick(); };
  const WaitForWork wait_for = [this](const tensor::Work& work) { job_.waits.wait(work); };
  const auto decoders = job_.group(job_.begin.groups.vae);
  if (job_.tools.stage.spec().video_vae) {
    const auto& frames = job_.tools.stage.video_vae();
    const auto each = [this] { job_.tick(); };
    if (!decoders) return frames.decode(latents, 1, each);
    HaloExchange port(*decoders, job_.size.latent_height, wait_for);
    return port.collect_rows(frames.decode(latents, 1, port, each));
  }
  const auto& vae = job_.tools.stage.vae();
  const bool tiled = job_.begin.request.vae_tiling;
  if (!decoders) return tiled ? vae.decode_tiled(latents, tick) : vae.decode(latents, tick);
  if (tiled) return decode_tiles_together(vae, latents, *decoders, wait_for, tick);
  HaloExchange port(*decoders, job_.size.latent_height, wait_for);
  return port.collect_rows(vae.decode_rows(latents, port, tick));
}

std::vector<wire::BlobRef> JobDecoder::decode_pictures(wire::RowRange run) {
  const auto& begin = job_.begin;
  const auto& request = begin.request;
  const auto decoded = decode_together(latents_.all().slice(0, run.begin, run.end));
  if (begin.vae.rank != 0) return {};
  job_.require_finite(decoded, "decoded picture");
  const auto sized = models::resize_and_crop(decoded, request.output_height, request.output_width);
  const auto pictures = models::to_uint8(sized).to(at::kCPU);
  std::vector<wire::BlobRef> blobs;
  for (std::int64_t i = 0; i < pictures.size(0); ++i) {
    const auto picture = pictures[i].contiguous();
    auto png = models::encode_png(picture, picture_text(begin.first_image + run.begin + i));
    blobs.push_back(job_.blobs.publish("picture", std::move(png), picture.sizes().vec()));
    job_.tick();
  }
  return blobs;
}

std::vector<wire::BlobRef> JobDecoder::decode_videos(wire::RowRange run) {
  const auto& begin = job_.begin;
  const auto& request = begin.request;
  const auto tick = [this] { job_.tick(); };
  const WaitForWork wait_for = [this](const tensor::Work& work) { job_.waits.wait(work); };
  const auto decoders = job_.group(begin.groups.vae);
  std::optional<HaloExchange> shared;
  if (decoders) shared.emplace(*decoders, job_.size.latent_height / job_.size.frames, wait_for);
  models::WholePicture whole;
  models::HaloPort& port = shared ? static_cast<models::HaloPort&>(*shared) : whole;

  std::vector<wire::BlobRef> blobs;
  std::vector<std::string> frames;
  const auto sink = [&](std::int64_t video, std::int64_t, const at::Tensor& pixels) {
    const auto frame = shared ? shared->collect_rows(pixels.contiguous()) : pixels;
    if (begin.vae.rank != 0) return;
    job_.require_finite(frame, "decoded frame");
    frames.push_back(models::encode_png(models::to_uint8(frame)[0], {}));
    tick();
    if (static_cast<int>(frames.size()) < request.num_frames) return;
    auto clip = models::join_frames(frames, picture_text(begin.first_image + run.begin + video),
                                    models::kFramesPerSecond);
    frames.clear();
    blobs.push_back(job_.blobs.publish("picture", std::move(clip),
                                       {request.output_height, request.output_width, 3}));
  };
  job_.tools.stage.video_vae().decode_rows(latents_.all().slice(0, run.begin, run.end),
                                           job_.size.frames, port, tick, sink);
  return blobs;
}

std::vector<wire::BlobRef> JobDecoder::previews(int step) {
  const auto& request = job_.begin.request;
  const bool asked = request.progress_interval > 0 && (step + 1) % request.progress_interval == 0;
  if (!asked || request.progress_content == ProgressContent::none) return {};
  transfers_.collect_latents(1);
  if (job_.begin.vae.degree == 0 || job_.begin.vae.rank != 0) return {};
  // Each job of a batch has previews of its own.
  constexpr std::size_t kKept = 4;
  const auto most = kKept * std::max<std::size_t>(1, request.pictures_of_jobs.size());
  if (request.progress_content == ProgressContent::latents)
    return {job_.blobs.keep_newest(previews_, latents_.publish(), most)};
  std::vector<wire::BlobRef> blobs;
  const auto first = job_.begin.first_image;
  for (const auto image : first_pictures(request, first, job_.begin.last_image)) {
    job_.waits.await_device();  // with all that the latents wait for
    const auto rough = job_.tools.stage.rough_picture(latents_.all().slice(0, image - first),
                                                      request.num_frames, [this] { job_.tick(); });
    const auto picture = models::to_uint8(rough).to(at::kCPU)[0].contiguous();
    auto png = models::encode_png(picture, {});
    auto blob = job_.blobs.publish("preview", std::move(png), picture.sizes().vec());
    blobs.push_back(job_.blobs.keep_newest(previews_, std::move(blob), most));
  }
  return blobs;
}

}  // namespace troupe::actors
