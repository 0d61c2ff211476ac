#include "controller/plan/request_rules.h"

#include <algorithm>
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
#include "models/image/limits.h"
#include "models/spec/prompt_embeds.h"
#include "models/spec/transformer_spec.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"

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

namespace {

using Shape = std::vector<std::int64_t>;

const wire::NamedShape* find_tensor(const wire::ImageRequest& request, const std::string& name) {
  const auto found = std::ranges::find(request.prompt_embeds, name, &wire::NamedShape::name);
  return found == request.prompt_embeds.end() ? nullptr : &*found;
}

std::string negative_of(const spec::PromptTensor& tensor) {
  return std::string(spec::kNegativeTensor) + tensor.name;
}

void check_names(const wire::ImageRequest& request, const spec::ModelSpec& model,
                 const std::vector<spec::PromptTensor>& tensors) {
  std::vector<std::string> taken;
  for (const auto& tensor : tensors)
    taken.push_back(tensor.name);
  if (model.transformer.guidance == spec::GuidanceKind::branches) {
    for (const auto& tensor : tensors)
      taken.push_back(negative_of(tensor));
  }
  std::string names;
  for (const auto& name : taken)
    names += (names.empty() ? "" : ", ") + name;
  for (std::size_t i = 0; i < request.prompt_embeds.size(); ++i) {
    const auto& name = request.prompt_embeds[i].name;
    if (std::ranges::find(taken, name) == taken.end())
      refuse(JobField::prompt_embeds, "prompt embeds have a tensor \"" + name +
                                          "\": " + model.pipeline_class + " takes " + names);
    if (find_tensor(request, name) != &request.prompt_embeds[i])
      refuse(JobField::prompt_embeds, "prompt embeds have two tensors \"" + name + "\"");
  }
}

/// Checks a tensor's shape and returns its number of tokens; 0 for a tensor that has none.
std::int64_t check_shape(const std::string& name, const Shape& shape,
                         const spec::PromptTensor& tensor, std::int64_t prompts) {
  using Kind = spec::PromptTensor::Kind;
  const bool has_tokens = tensor.kind != Kind::pooled;
  const bool has_width = tensor.kind != Kind::mask;
  const std::string tokens = tensor.tokens > 0 ? std::to_string(tensor.tokens) : "tokens";
  const std::string wanted = fmt::format("[{}{}{}]", prompts, has_tokens ? ", " + tokens : "",
                                         has_width ? fmt::format(", {}", tensor.width) : "");
  const std::size_t rank = 1 + (has_tokens ? 1 : 0) + (has_width ? 1 : 0);
  const bool fits = shape.size() == rank && shape[0] == prompts &&
                    (!has_width || shape.back() == tensor.width) &&
                    (!has_tokens || (tensor.tokens > 0 ? shape[1] == tensor.tokens : shape[1] > 0));
  if (!fits) {
    std::string text;
    for (const auto extent : shape)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", extent);
    refuse(JobField::prompt_embeds,
           name + " has the shape [" + text + "]: this model takes " + wanted);
  }
  return has_tokens ? shape[1] : 0;
}

/// Refuses fields that go with text alone.
void check_no_text(const wire::ImageRequest& request, bool encodes_negative) {
  const auto is_text = [](const std::string& text) { return !text.empty(); };
  if (std::ranges::any_of(request.prompts, is_text))
    refuse(JobField::prompts, "prompt and prompt embeds do not go together");
  if (encodes_negative) return;
  if (is_text(request.negative_prompt.value_or("")) ||
      std::ranges::any_of(request.negative_prompts, is_text))
    refuse(
        JobField::negative_prompt,
        "negative prompt does not go with prompt embeds that have the negative text, or need none");
  if (request.clean_caption)
    refuse(JobField::clean_caption, "clean_caption is on, but with prompt embeds there is no text");
}

void check_bytes(const wire::ImageRequest& request) {
  std::uint64_t bytes = 0;
  for (const auto& tensor : request.prompt_embeds) {
    std::uint64_t own = sizeof(float);
    for (const auto extent : tensor.shape)
      own *= static_cast<std::uint64_t>(extent);
    bytes += own;
  }
  if (request.prompt_embeds_bytes != bytes) {
    refuse(JobField::prompt_embeds,
           fmt::format("prompt embeds have {} bytes, but their shapes in float32 need {}",
                       request.prompt_embeds_bytes, bytes));
  }
}

}  // namespace

void set_prompt_embeds(wire::ImageRequest& request, const spec::ModelSpec& model,
                       bool encodes_negative) {
  const auto tensors = spec::prompt_tensors(model);
  check_names(request, model, tensors);
  check_no_text(request, encodes_negative);
  if (request.clean_caption && !model.pixart_customs)
    refuse(JobField::clean_caption,
           "clean_caption is on, but " + model.pipeline_class + " takes prompts as they are");
  const bool any_negative = std::ranges::any_of(request.prompt_embeds, [](const auto& tensor) {
    return tensor.name.starts_with(spec::kNegativeTensor);
  });
  const auto prompts = static_cast<std::int64_t>(request.prompts.size());
  std::vector<std::optional<std::int64_t>> tokens;  // by output
  std::int64_t all_tokens = 0;
  for (const auto& tensor : tensors) {
    const auto* own = find_tensor(request, tensor.name);
    if (!own) refuse(JobField::prompt_embeds, tensor.name + " is missing from the prompt embeds");
    const auto count = check_shape(tensor.name, own->shape, tensor, prompts);
    if (const auto* negative = find_tensor(request, negative_of(tensor))) {
      if (negative->shape != own->shape)
        check_shape(negative->name, negative->shape, tensor, prompts);
      if (negative->shape != own->shape)
        refuse(JobField::prompt_embeds,
               negative->name + " has another number of tokens than " + tensor.name);
    } else if (any_negative) {
      refuse(JobField::prompt_embeds,
             negative_of(tensor) +
                 " is missing from the prompt embeds: these have some of the "
                 "negative text, so they need all of it");
    }
    if (count == 0) continue;
    tokens.resize(std::max(tokens.size(), tensor.output + 1));
    auto& known = tokens[tensor.output];
    if (known && *known != count) {
      refuse(JobField::prompt_embeds, fmt::format("{} is of {}, but what it masks of {}",
                                                  tensor.name, counted(count, "token"), *known));
    }
    if (!known) all_tokens += count;
    known = count;
  }
  const auto length = all_tokens - model.transformer.more_text_tokens;
  if (length < 1 || length > wire::kMaxTextTokens) {
    refuse(JobField::prompt_embeds,
           fmt::format("prompt_embeds are of {}: this model takes {} to {}",
                       counted(all_tokens, "token"), model.transformer.more_text_tokens + 1,
                       model.transformer.more_text_tokens + wire::kMaxTextTokens));
  }
  const auto fixed = model.transformer.fixed_text_tokens;
  if (encodes_negative && fixed > 0 && length != fixed) {
    refuse(
        JobField::prompt_embeds,
        fmt::format("prompt_embeds are of {}, but the negative text, which is to be encoded, of {}",
                    counted(all_tokens, "token"), fixed));
  }
  if (request.max_sequence_length != 0 && request.max_sequence_length != length) {
    refuse(JobField::max_sequence_length,
           fmt::format("max sequence length is {}, but prompt_embeds are of {}",
                       request.max_sequence_length, counted(all_tokens, "token")));
  }
  request.max_sequence_length = static_cast<std::int32_t>(length);
  check_bytes(request);
}

}  // namespace troupe::plan
