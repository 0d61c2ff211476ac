#include "controller/plan/request_check.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/number_text.h"
#include "base/utf8.h"
#include "controller/plan/refuse.h"
#include "models/image/limits.h"
#include "models/spec/request_limits.h"
#include "models/spec/step_cache.h"

namespace troupe::plan {
namespace {

using spec::kMaxLoraScale;
using spec::kMaxPromptBytes;

void require_at_least(const char* field, std::int64_t value, std::int64_t least) {
  if (value < least) {
    refuse(std::string(field) + " is " + std::to_string(value) + ": at least " +
           std::to_string(least) + " is needed");
  }
}

void check_text(const std::string& field, const std::string& text) {
  if (text.size() > kMaxPromptBytes) {
    refuse(field + " has " + std::to_string(text.size()) + " bytes: at most " +
           std::to_string(kMaxPromptBytes));
  }
  if (!is_utf8(text) || text.find('\0') != std::string::npos) refuse(field + " is not UTF-8 text");
}

void check_texts(const wire::ImageRequest& request) {
  if (request.prompts.empty()) refuse("prompt is missing");
  std::size_t bytes = request.negative_prompt.size();
  check_text("negative prompt", request.negative_prompt);
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    check_text("prompt " + std::to_string(i), request.prompts[i]);
    bytes += request.prompts[i].size();
  }
  if (bytes > spec::kMaxTextBytes) {
    refuse("all prompts have " + std::to_string(bytes) + " bytes: at most " +
           std::to_string(spec::kMaxTextBytes));
  }
}

/// What begins a picture beside noise, what steers it beside the text, what is added to weights.
void check_around(const wire::ImageRequest& request) {
  if (!(request.strength >= 0 && request.strength <= 1))
    refuse("strength is " + number_text(request.strength) + ": a number from 0 to 1 is needed");
  if (request.init_image_bytes != 0 && request.init_latents_blob != 0)
    refuse("init image and init latents do not go together");
  if (request.init_image_blob != 0 && request.init_image_bytes == 0) refuse("init image is empty");
  if (request.init_image_bytes > models::kMaxPngBytes) {
    refuse("init image has " + std::to_string(request.init_image_bytes) + " bytes: at most " +
           std::to_string(models::kMaxPngBytes));
  }
  require_at_least("init image height", request.init_image_height, 0);
  require_at_least("init image width", request.init_image_width, 0);
  const std::int64_t height = request.init_image_height, width = request.init_image_width;
  if (static_cast<std::uint64_t>(height * width) > models::kMaxPngPixels) {
    refuse("init image has " + std::to_string(width) + " x " + std::to_string(height) +
           " pixels: at most " + std::to_string(models::kMaxPngPixels));
  }
  if (!(request.guidance_rescale >= 0 && request.guidance_rescale <= 1)) {
    refuse("guidance rescale is " + number_text(request.guidance_rescale) +
           ": a number from 0 to 1 is needed");
  }
  if (request.loras.size() > spec::kMaxLoras) {
    refuse("loras are " + std::to_string(request.loras.size()) + ": at most " +
           std::to_string(spec::kMaxLoras));
  }
  for (const auto& lora : request.loras) {
    check_text("lora", lora.path);
    if (lora.path.empty()) refuse("lora names no file");
    if (!(lora.scale >= -kMaxLoraScale && lora.scale <= kMaxLoraScale)) {
      refuse("lora " + lora.path + " has scale " + number_text(lora.scale) + ": a number from " +
             number_text(-kMaxLoraScale) + " to " + number_text(kMaxLoraScale) + " is needed");
    }
  }
}

void check_step_cache(const wire::ImageRequest& request) {
  const double threshold = request.step_cache_threshold;
  if (!request.step_cache.empty() && !spec::is_step_cache(request.step_cache))
    refuse("step cache is \"" + request.step_cache + "\": first-block or teacache");
  if (request.step_cache.empty() && threshold != 0)
    refuse("step cache threshold is " + number_text(threshold) + ", but there is no step cache");
  if (!(threshold >= 0 && threshold <= spec::kLargestCacheThreshold)) {
    refuse("step cache threshold is " + number_text(threshold) +
           ": a number above 0, up to 10, is needed");
  }
}

std::vector<std::string> cleaned_texts(const wire::ImageRequest& request) {
  if (!request.clean_caption) return {};
  auto texts = request.prompts;
  texts.push_back(request.negative_prompt);
  return texts;
}

}  // namespace

void check_request(const wire::ImageRequest& request) {
  check_texts(request);
  require_at_least("images per prompt", request.images_per_prompt, 1);
  const auto pictures =
      static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
  if (pictures > spec::kMaxPictures) {
    refuse("prompts × images per prompt is " + std::to_string(pictures) + ": at most " +
           std::to_string(spec::kMaxPictures));
  }
  require_at_least("frames", request.num_frames, 0);
  require_at_least("steps", request.steps, 1);
  require_at_least("warmup", request.warmup_steps, 0);
  require_at_least("max sequence length", request.max_sequence_length, 0);
  if (request.max_sequence_length > spec::kMaxTextTokens) {
    refuse("max sequence length is " + std::to_string(request.max_sequence_length) + ": at most " +
           std::to_string(spec::kMaxTextTokens));
  }
  if (!(request.guidance_scale >= 0 && request.guidance_scale <= 1e4)) {
    refuse("guidance is " + number_text(request.guidance_scale) +
           ": a number from 0 to 10000 is needed");
  }
  const bool exact = request.method == "exact";
  if (!exact && request.method != "pipefusion" && request.method != "distrifusion") {
    refuse("method is \"" + request.method + "\": exact, pipefusion or distrifusion");
  }
  if (request.kv != "stale" && request.kv != "predict") {
    refuse("kv is \"" + request.kv + "\": stale or predict");
  }
  if (exact && request.kv != "stale") {
    refuse(
        "kv is predict with method exact: only pipefusion and distrifusion have K,V that are "
        "not fresh");
  }
  if (exact && request.num_pipeline_patch != 1) {
    refuse("patches is " + std::to_string(request.num_pipeline_patch) +
           " with method exact: patches need method pipefusion or distrifusion");
  }
  if (request.group_norm != "corrected" && request.group_norm != "stale" &&
      request.group_norm != "synchronous" && request.group_norm != "separate") {
    refuse("group norm is \"" + request.group_norm +
           "\": corrected, stale, synchronous or separate");
  }
  if (request.exchange != "stale" && request.exchange != "none" && request.exchange != "all") {
    refuse("exchange is \"" + request.exchange + "\": stale, none or all");
  }
  check_step_cache(request);
  if (request.dtype != "float32" && request.dtype != "bfloat16" && request.dtype != "float16") {
    refuse("dtype is \"" + request.dtype + "\": float32, bfloat16 or float16");
  }
  if (!request.weight_dtype.empty() && request.weight_dtype != "int8" &&
      request.weight_dtype != "fp8") {
    refuse("weight dtype is \"" + request.weight_dtype + "\": int8 or fp8");
  }
  if (request.noise_dtype != "float32" && request.noise_dtype != "model") {
    refuse("noise dtype is \"" + request.noise_dtype + "\": float32 or model");
  }
  for (const auto& text : cleaned_texts(request)) {
    if (text.size() > spec::kMaxCleanedBytes) {
      refuse("a prompt has " + std::to_string(text.size()) +
             " bytes: clean_caption takes at most " + std::to_string(spec::kMaxCleanedBytes));
    }
  }
  check_around(request);
  require_at_least("progress interval", request.progress_interval, 0);
  if (!request.progress_content.empty() && request.progress_content != "latents" &&
      request.progress_content != "preview") {
    refuse("progress content is \"" + request.progress_content + "\": latents or preview");
  }
}

}  // namespace troupe::plan
