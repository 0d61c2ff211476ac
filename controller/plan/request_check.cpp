#include "controller/plan/request_check.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "controller/plan/refuse.h"
#include "models/image/limits.h"
#include "models/spec/transformer_spec.h"
#include "transport/wire/request_fields.h"

namespace troupe::plan {
namespace {

using wire::kMaxLoraScale;
using wire::kMaxPromptBytes;

void require_at_least(JobField field, const std::string& words, std::int64_t value,
                      std::int64_t least) {
  if (value < least) {
    refuse(field, fmt::format("{} is {}: at least {} is needed", words, value, least));
  }
}

void check_number(const wire::RequestField& field, std::int32_t value) {
  const auto& [least, most, above] = field.taken;
  if (std::isfinite(least))
    require_at_least(field.field, field.in_words(), value, static_cast<std::int64_t>(least));
  if (static_cast<double>(value) > most) {
    refuse(field.field,
           fmt::format("{} is {}: at most {}", field.in_words(), value, number_text(most)));
  }
}

void check_number(const wire::RequestField& field, double value) {
  const auto& [least, most, above] = field.taken;
  if (!std::isfinite(least) || (value >= least && value <= most)) return;
  refuse(field.field, field.in_words() + " is " + number_text(value) + ": a number from " +
                          number_text(least) + " to " + number_text(most) + " is needed");
}

void check_number(const wire::RequestField& field, std::optional<double> value) {
  if (value) check_number(field, *value);
}

void check_text(JobField field, const std::string& words, const std::string& text) {
  if (text.size() > kMaxPromptBytes) {
    refuse(field, fmt::format("{} has {} bytes: at most {}", words, text.size(), kMaxPromptBytes));
  }
  if (!is_utf8(text)) refuse(field, words + " is not UTF-8 text");
  if (text.find('\0') != std::string::npos) refuse(field, words + " has a zero byte in it");
}

void check_texts(const wire::ImageRequest& request) {
  if (request.prompts.empty()) refuse(JobField::prompts, "prompt is missing");
  const std::string negative = request.negative_prompt.value_or("");
  std::size_t bytes = negative.size();
  check_text(JobField::negative_prompt, "negative prompt", negative);
  for (std::size_t i = 0; i < request.negative_prompts.size(); ++i) {
    check_text(JobField::negative_prompts, fmt::format("negative prompt {}", i),
               request.negative_prompts[i]);
    bytes += request.negative_prompts[i].size();
  }
  for (std::size_t i = 0; i < request.prompts.size(); ++i) {
    check_text(JobField::prompts, fmt::format("prompt {}", i), request.prompts[i]);
    bytes += request.prompts[i].size();
  }
  if (bytes > wire::kMaxTextBytes) {
    refuse(JobField::prompts,
           fmt::format("all prompts have {} bytes: at most {}", bytes, wire::kMaxTextBytes));
  }
}

void check_picture(JobField field, const std::string& name, std::uint64_t blob, std::uint64_t bytes,
                   std::int64_t height, std::int64_t width) {
  if (blob != 0 && bytes == 0) refuse(field, name + " is empty");
  if (bytes > models::kMaxPictureBytes)
    refuse(field,
           fmt::format("{} has {} bytes: at most {}", name, bytes, models::kMaxPictureBytes));
  require_at_least(field, name + " height", height, 0);
  require_at_least(field, name + " width", width, 0);
  if (static_cast<std::uint64_t>(height * width) > models::kMaxPicturePixels) {
    refuse(field, fmt::format("{} has {} x {} pixels: at most {}", name, width, height,
                              models::kMaxPicturePixels));
  }
  const auto most = models::most_picture_bytes(static_cast<std::uint64_t>(height),
                                               static_cast<std::uint64_t>(width));
  if (bytes > most) {
    refuse(
        field,
        fmt::format(
            "{} has {} bytes, but a picture of {} x {} pixels has at most {}: leave out what is no "
            "picture of it (metadata, further frames)",
            name, bytes, width, height, most));
  }
}

/// Checks the fields that begin a picture beside noise, steer it beside the text, or are added to
/// weights.
void check_around(const wire::ImageRequest& request) {
  if (request.init_image_bytes != 0 && request.init_latents_blob != 0)
    refuse(JobField::init_image, "init image and init latents do not go together");
  if (request.mask_image_bytes != 0 && request.init_image_bytes == 0)
    refuse(JobField::mask_image, "mask image is given, but no init image that it is laid over");
  check_picture(JobField::init_image, "init image", request.init_image_blob,
                request.init_image_bytes, request.init_image_height, request.init_image_width);
  check_picture(JobField::mask_image, "mask image", request.mask_image_blob,
                request.mask_image_bytes, request.mask_image_height, request.mask_image_width);
  if (request.loras.size() > wire::kMaxLoras) {
    refuse(JobField::loras,
           fmt::format("loras are {}: at most {}", request.loras.size(), wire::kMaxLoras));
  }
  for (const auto& lora : request.loras) {
    check_text(JobField::loras, "lora", lora.path);
    if (lora.path.empty()) refuse(JobField::loras, "lora names no file");
    if (!(lora.scale >= -kMaxLoraScale && lora.scale <= kMaxLoraScale)) {
      refuse(JobField::loras, "lora " + lora.path + " has scale " + number_text(lora.scale) +
                                  ": a number from " + number_text(-kMaxLoraScale) + " to " +
                                  number_text(kMaxLoraScale) + " is needed");
    }
  }
  for (const auto& embedding : request.embeddings) {
    check_text(JobField::embeddings, "embedding", embedding.path);
    check_text(JobField::embeddings, "word of an embedding", embedding.token);
    if (embedding.path.empty()) refuse(JobField::embeddings, "embedding names no file");
  }
}

void check_step_cache(const wire::ImageRequest& request) {
  const double threshold = request.step_cache_threshold;
  if (request.step_cache == StepCacheRule::none && threshold != 0)
    refuse(JobField::step_cache_threshold,
           "step cache threshold is " + number_text(threshold) + ", but there is no step cache");
  if (!(threshold >= 0 && threshold <= spec::kLargestCacheThreshold)) {
    refuse(JobField::step_cache_threshold, "step cache threshold is " + number_text(threshold) +
                                               ": a number above 0, up to 10, is needed");
  }
}

}  // namespace

std::vector<std::string> texts_of(const wire::ImageRequest& request) {
  auto texts = request.prompts;
  texts.push_back(request.negative_prompt.value_or(""));
  texts.insert(texts.end(), request.negative_prompts.begin(), request.negative_prompts.end());
  return texts;
}

void check_request(const wire::ImageRequest& request) {
  check_texts(request);
  wire::for_each_field([&](const wire::RequestField& field, auto member) {
    using Value = wire::Given<std::remove_cvref_t<decltype(request.*member)>>;
    if constexpr (std::is_same_v<Value, std::int32_t> || std::is_same_v<Value, double>)
      check_number(field, request.*member);
  });
  const auto pictures =
      static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
  if (pictures > wire::kMaxPictures) {
    refuse(JobField::images_per_prompt, fmt::format("prompts × images per prompt is {}: at most {}",
                                                    pictures, wire::kMaxPictures));
  }
  const bool exact = request.method == Method::exact;
  if (exact && request.kv != KvUse::stale) {
    refuse(JobField::kv,
           "kv is predict with method exact: only pipefusion and distrifusion have K,V that are "
           "not fresh");
  }
  if (exact && request.num_pipeline_patch != 1) {
    refuse(JobField::num_pipeline_patch,
           fmt::format(
               "patches is {} with method exact: patches need method pipefusion or distrifusion",
               request.num_pipeline_patch));
  }
  check_step_cache(request);
  for (const auto& text : texts_of(request)) {
    if (request.clean_caption && text.size() > wire::kMaxCleanedBytes) {
      refuse(JobField::prompts, fmt::format("a prompt has {} bytes: clean_caption takes at most {}",
                                            text.size(), wire::kMaxCleanedBytes));
    }
  }
  check_around(request);
}

}  // namespace troupe::plan
