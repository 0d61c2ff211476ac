#include "transport/wire/request_rules.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "models/image/limits.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"

namespace troupe::wire {
namespace {

/// Calls of the model beyond the steps that a sampler makes at most: of PNDM the first three steps
/// take four calls each.
constexpr std::int64_t kMostMoreCalls = 9;

[[noreturn]] void refuse(JobField field, const std::string& why) {
  throw BadField(field, why);
}

std::string quoted(JobField field) {
  return "`" + to_string(field) + "`";
}

std::string is_or_are(std::int64_t number, const std::string& noun) {
  return (number == 1 ? "is " : "are ") + counted(number, noun);
}

std::int64_t pictures_of(const ImageRequest& request) {
  return static_cast<std::int64_t>(request.prompts.size()) * request.images_per_prompt;
}

// Numbers.

void check_whole(const RequestField& field, std::int32_t value) {
  const auto& [least, most, above] = field.taken;
  if (value < least)
    refuse(field.field, fmt::format("{} is {}: at least {} is needed", quoted(field.field), value,
                                    number_text(least)));
  if (value > most)
    refuse(field.field,
           fmt::format("{} is {}: at most {}", quoted(field.field), value, number_text(most)));
}

void check_number(const RequestField& field, std::optional<double> value) {
  const auto& [least, most, above] = field.taken;
  if (!value || !std::isfinite(least) || (*value >= least && *value <= most)) return;
  refuse(field.field, fmt::format("{} is {}: a number from {} to {} is needed", quoted(field.field),
                                  number_text(*value), number_text(least), number_text(most)));
}

// Texts.

void check_text(JobField field, const std::string& what, const std::string& text) {
  if (text.size() > kMaxPromptBytes)
    refuse(field, fmt::format("{} has {} bytes: at most {} are taken", what, text.size(),
                              kMaxPromptBytes));
  if (!is_utf8(text)) refuse(field, what + " is not UTF-8 text");
  if (text.find('\0') != std::string::npos) refuse(field, what + " has a zero byte in it");
}

void check_prompts(JobField field, const std::vector<std::string>& texts, bool cleaned) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string what =
        quoted(field) + (texts.size() > 1 ? fmt::format(" number {}", i + 1) : "");
    check_text(field, what, texts[i]);
    if (cleaned && texts[i].size() > kMaxCleanedBytes)
      refuse(field,
             fmt::format("{} has {} bytes: with {} at most {} are taken", what, texts[i].size(),
                         quoted(JobField::clean_caption), kMaxCleanedBytes));
  }
}

void check_texts(const ImageRequest& request) {
  if (request.prompts.empty()) refuse(JobField::prompts, quoted(JobField::prompts) + " is missing");
  const std::string negative = request.negative_prompt.value_or("");
  check_prompts(JobField::prompts, request.prompts, request.clean_caption);
  check_prompts(JobField::negative_prompts, request.negative_prompts, request.clean_caption);
  check_prompts(JobField::negative_prompt, {negative}, request.clean_caption);
  std::size_t bytes = 0;
  for (const auto& text : texts_of(request))
    bytes += text.size();
  if (bytes > kMaxTextBytes)
    refuse(JobField::prompts,
           fmt::format("all prompts have {} bytes: at most {} are taken", bytes, kMaxTextBytes));
  const auto is_text = [](const std::string& text) { return !text.empty(); };
  if (!request.prompt_embeds.empty() && std::ranges::any_of(request.prompts, is_text))
    refuse_both(JobField::prompts, JobField::prompt_embeds);
}

/// Checks what is given for each picture: as many values as there are pictures.
void check_own_settings(const ImageRequest& request) {
  const auto pictures = pictures_of(request);
  const auto seeds = static_cast<std::int64_t>(request.picture_seeds.size());
  if (seeds > 0 && seeds != pictures)
    refuse(JobField::picture_seeds,
           fmt::format("{} has {}, but there {} (prompts × {})", quoted(JobField::picture_seeds),
                       counted(seeds, "value"), is_or_are(pictures, "picture"),
                       quoted(JobField::images_per_prompt)));
  const auto texts = static_cast<std::int64_t>(request.negative_prompts.size());
  const auto prompts = static_cast<std::int64_t>(request.prompts.size());
  if (texts == 0) return;
  if (!request.negative_prompt.value_or("").empty())
    refuse_both(JobField::negative_prompt, JobField::negative_prompts);
  if (texts != pictures && texts != prompts)
    refuse(JobField::negative_prompts,
           fmt::format("{} has {}, but there {} and {}", quoted(JobField::negative_prompts),
                       counted(texts, "text"), is_or_are(prompts, "prompt"),
                       counted(pictures, "picture")));
}

// What a picture begins with, and files.

void check_picture(JobField field, std::uint64_t blob, std::uint64_t bytes, std::int64_t height,
                   std::int64_t width, const std::string& which = "") {
  const std::string name = quoted(field) + which;
  if (blob != 0 && bytes == 0) refuse(field, name + " is empty");
  if (bytes > models::kMaxPictureBytes)
    refuse(field,
           fmt::format("{} has {} bytes: at most {}", name, bytes, models::kMaxPictureBytes));
  if (height < 0 || width < 0 ||
      static_cast<std::uint64_t>(height * width) > models::kMaxPicturePixels)
    refuse(field, fmt::format("{} has {} x {} pixels: at most {}", name, width, height,
                              models::kMaxPicturePixels));
  const auto most = models::most_picture_bytes(static_cast<std::uint64_t>(height),
                                               static_cast<std::uint64_t>(width));
  if (bytes > most)
    refuse(field, fmt::format("{} has {} bytes, but a picture of {} x {} pixels has at most {}: "
                              "leave out what is no picture of it (metadata, further frames)",
                              name, bytes, width, height, most));
}

bool has_image(const ImageRequest& request) {
  return request.init_image_bytes != 0 || request.init_image_blob != 0 ||
         (request.images_as_taken && !request.images.empty());
}

void require_image(const ImageRequest& request, JobField field, const std::string& what) {
  if (has_image(request)) return;
  if (!request.images.empty())
    refuse(field,
           fmt::format("{} needs a picture to begin with: what {} has stands beside the text",
                       quoted(field), quoted(JobField::images)));
  refuse(field, fmt::format("{} needs {}, {}", quoted(field), quoted(JobField::init_image), what));
}

void check_pictures(JobField field, const std::vector<SentPicture>& images, std::size_t most) {
  if (images.size() > most)
    refuse(field,
           fmt::format("{} has {}: at most {} are taken", quoted(field), images.size(), most));
  for (std::size_t i = 0; i < images.size(); ++i) {
    const std::string which = images.size() > 1 ? fmt::format(" number {}", i + 1) : "";
    if (images[i].bytes == 0) refuse(field, quoted(field) + which + " is empty");
    check_picture(field, images[i].blob, images[i].bytes, images[i].height, images[i].width, which);
  }
}

void check_images(const ImageRequest& request) {
  const auto& images = request.images;
  check_pictures(JobField::images, images, kMaxImages);
  const auto& last = request.last_image;
  check_picture(JobField::last_image, last.blob, last.bytes, last.height, last.width);
  if (last.bytes != 0 && images.empty())
    refuse(JobField::last_image,
           fmt::format("{} needs {}, the first frame", quoted(JobField::last_image),
                       quoted(JobField::images)));
}

/// Checks one of the numbers that each ControlNet has, or all of them together.
void check_control_numbers(JobField field, const std::vector<double>& values, const Bounds& bounds,
                           const ImageRequest& request) {
  if (values.empty()) return;
  for (const double value : values)
    if (!(value >= bounds.least && value <= bounds.most))
      refuse(field,
             fmt::format("{} has {}: a number from {} to {} is needed", quoted(field),
                         number_text(value), number_text(bounds.least), number_text(bounds.most)));
  const auto pictures = request.control_images.size();
  if (pictures == 0 && !request.images_as_taken)
    refuse(field, quoted(field) + " needs " + quoted(JobField::control_images));
  if (values.size() > 1 && pictures > 0 && values.size() != pictures)
    refuse(field,
           fmt::format("{} has {}, but {} has {}", quoted(field),
                       counted(std::ssize(values), "value"), quoted(JobField::control_images),
                       counted(static_cast<std::int64_t>(pictures), "picture")));
}

void check_control(const ImageRequest& request) {
  check_pictures(JobField::control_images, request.control_images, kMaxControlNets);
  const auto& nets = request.controlnets;
  const std::string name = quoted(JobField::controlnets);
  if (nets.size() > kMaxControlNets)
    refuse(JobField::controlnets,
           fmt::format("{} has {}: at most {} are taken", name, nets.size(), kMaxControlNets));
  for (const auto& net : nets) {
    check_text(JobField::controlnets, name, net);
    if (net.empty()) refuse(JobField::controlnets, name + " names no folder");
  }
  if (!nets.empty() && request.control_images.empty() && !request.images_as_taken)
    refuse(JobField::controlnets,
           name + " needs " + quoted(JobField::control_images) + ", the pictures that they follow");
  const auto& fields = kRequestFields;
  const auto check = [&](const RequestField& field, const std::vector<double>& values) {
    check_control_numbers(field.field, values, field.typed, request);
  };
  check(fields.control_scale, request.control_scale);
  check(fields.control_from, request.control_from);
  check(fields.control_until, request.control_until);
  const std::size_t count = std::max(request.control_from.size(), request.control_until.size());
  for (std::size_t i = 0; i < count; ++i) {
    const double from = control_value(request.control_from, i, 0);
    const double until = control_value(request.control_until, i, 1);
    if (!(from < until))
      refuse(JobField::control_from,
             fmt::format("{} is {}, but {} is {}: a ControlNet counts from one until the other",
                         quoted(JobField::control_from), number_text(from),
                         quoted(JobField::control_until), number_text(until)));
  }
}

void check_beginning(const ImageRequest& request) {
  if (has_image(request) && (request.init_latents_bytes != 0 || request.init_latents_blob != 0))
    refuse_both(JobField::init_image, JobField::init_latents);
  if (constexpr std::size_t kSides = 4; request.init_latents_shape.size() > kSides)
    refuse(JobField::init_latents,
           fmt::format("{} have {} dimensions: [pictures, channels, rows, columns] are {}",
                       quoted(JobField::init_latents), request.init_latents_shape.size(), kSides));
  if (request.mask_image_bytes != 0 || request.mask_image_blob != 0)
    require_image(request, JobField::mask_image, "the picture that it is laid over");
  check_images(request);
  check_control(request);
  check_picture(JobField::init_image, request.init_image_blob, request.init_image_bytes,
                request.init_image_height, request.init_image_width);
  check_picture(JobField::mask_image, request.mask_image_blob, request.mask_image_bytes,
                request.mask_image_height, request.mask_image_width);
}

void check_files(const ImageRequest& request) {
  const std::string loras = quoted(JobField::loras), embeddings = quoted(JobField::embeddings);
  if (request.loras.size() > kMaxLoras)
    refuse(JobField::loras, fmt::format("{} has {} files: at most {} are added", loras,
                                        request.loras.size(), kMaxLoras));
  for (const auto& lora : request.loras) {
    check_text(JobField::loras, loras, lora.path);
    if (lora.path.empty()) refuse(JobField::loras, loras + " names no file");
    if (!(lora.scale >= -kMaxLoraScale && lora.scale <= kMaxLoraScale))
      refuse(JobField::loras,
             fmt::format("{} has {} with scale {}: a number from {} to {} is needed", loras,
                         lora.path, number_text(lora.scale), number_text(-kMaxLoraScale),
                         number_text(kMaxLoraScale)));
  }
  for (const auto& embedding : request.embeddings) {
    check_text(JobField::embeddings, embeddings, embedding.path);
    check_text(JobField::embeddings, embeddings, embedding.token);
    if (embedding.path.empty()) refuse(JobField::embeddings, embeddings + " names no file");
  }
}

// How a picture is computed.

/// Refuses fields that say something of patches, where the method has none.
void check_exact(const ImageRequest& request) {
  const std::string method = quoted(JobField::method);
  if (request.num_pipeline_patch != 1)
    refuse(JobField::num_pipeline_patch,
           fmt::format("{} is {}, but {} is exact: only pipefusion and distrifusion have patches",
                       quoted(JobField::num_pipeline_patch), request.num_pipeline_patch, method));
  if (request.kv != KvUse::stale)
    refuse(JobField::kv,
           fmt::format("{} is {}, but {} is exact: only pipefusion and distrifusion have K,V that "
                       "are not fresh",
                       quoted(JobField::kv), to_string(request.kv), method));
  const auto refuse_choice = [&](JobField field, const std::string& value) {
    refuse(field,
           fmt::format("{} is {}, but {} is exact, which has no patches: it needs distrifusion",
                       quoted(field), value, method));
  };
  if (request.group_norm != GroupNormMoments::corrected)
    refuse_choice(JobField::group_norm, to_string(request.group_norm));
  if (request.exchange != PatchExchange::stale)
    refuse_choice(JobField::exchange, to_string(request.exchange));
}

/// Refuses what does not go with patches that never see each other.
void check_naive(const ImageRequest& request) {
  const auto refuse_beside = [](const std::string& what) {
    refuse(JobField::exchange, quoted(JobField::exchange) + " is naive, but " + what);
  };
  if (request.method != Method::distrifusion)
    refuse_beside(quoted(JobField::method) + " is " + to_string(request.method) +
                  ": it needs distrifusion");
  if (request.kv != KvUse::stale)
    refuse_beside(quoted(JobField::kv) + " is " + to_string(request.kv) +
                  ": nothing is kept that it could be made of");
  if (request.group_norm == GroupNormMoments::stale ||
      request.group_norm == GroupNormMoments::synchronous)
    refuse_beside(quoted(JobField::group_norm) + " is " + to_string(request.group_norm) +
                  ": naive patches have moments of their own (separate)");
  if (request.step_cache != StepCacheRule::none)
    refuse_beside(quoted(JobField::step_cache) + " is " + to_string(request.step_cache) +
                  ": it takes a step of the whole picture after a loss");
  if (!request.refill_steps.empty())
    refuse_beside(quoted(JobField::refill_steps) + " is given: nothing is kept");
}

void check_method(const ImageRequest& request) {
  if (request.method == Method::exact) check_exact(request);
  if (request.exchange == PatchExchange::naive) check_naive(request);
  if (request.exchange == PatchExchange::none &&
      request.group_norm == GroupNormMoments::synchronous)
    refuse(JobField::exchange,
           fmt::format("{} is none, but {} is synchronous: one exchanges in every step, the other "
                       "never",
                       quoted(JobField::exchange), quoted(JobField::group_norm)));
  const double threshold = request.step_cache_threshold;
  if (const auto most = kRequestFields.step_cache_threshold.typed.most;
      !(threshold >= 0 && threshold <= most))
    refuse(JobField::step_cache_threshold,
           fmt::format("{} is {}: a number above 0, up to {}, is needed",
                       quoted(JobField::step_cache_threshold), number_text(threshold),
                       number_text(most)));
  if (request.step_cache == StepCacheRule::none && threshold != 0)
    refuse(JobField::step_cache_threshold,
           fmt::format("{} needs {} first-block or teacache",
                       quoted(JobField::step_cache_threshold), quoted(JobField::step_cache)));
}

void check_steps(const ImageRequest& request) {
  const bool exact = request.method == Method::exact;
  const bool is_warm = !exact && request.exchange != PatchExchange::naive;
  const std::int64_t steps = request.steps;
  if (!request.timesteps.empty() && !request.sigmas.empty())
    refuse_both(JobField::timesteps, JobField::sigmas);
  if (is_warm && steps > 0 && request.warmup_steps > steps)
    refuse(JobField::warmup_steps,
           fmt::format("{} is {}, but {} is {}", quoted(JobField::warmup_steps),
                       request.warmup_steps, quoted(JobField::steps), steps));
  if (request.refill_steps.empty()) return;
  const std::string refills = quoted(JobField::refill_steps);
  if (exact && request.step_cache == StepCacheRule::none)
    refuse(JobField::refill_steps,
           fmt::format("{} needs {} pipefusion or distrifusion, or {}: else nothing is kept from "
                       "step to step",
                       refills, quoted(JobField::method), quoted(JobField::step_cache)));
  std::int64_t before = is_warm ? request.warmup_steps - 1 : -1;
  for (const std::int64_t step : request.refill_steps) {
    if (step <= before)
      refuse(JobField::refill_steps, fmt::format("{} has {} out of place: steps after the warm-up "
                                                 "are named, in order, each once",
                                                 refills, step));
    if (steps > 0 && step >= steps + kMostMoreCalls)
      refuse(JobField::refill_steps,
             fmt::format("{} has {}, but {} is {}", refills, step, quoted(JobField::steps), steps));
    before = step;
  }
}

}  // namespace

double control_value(const std::vector<double>& values, std::size_t net, double otherwise) {
  if (values.empty()) return otherwise;
  return values.size() == 1 ? values.front() : values.at(net);
}

bool control_counts(const ImageRequest& request, std::size_t net, int step) {
  const double steps = request.steps;
  return step / steps >= control_value(request.control_from, net, 0) &&
         (step + 1) / steps <= control_value(request.control_until, net, 1);
}

void refuse_both(JobField one, JobField other) {
  refuse(one, quoted(one) + " and " + quoted(other) + " do not go together");
}

std::vector<std::string> texts_of(const ImageRequest& request) {
  auto texts = request.prompts;
  texts.push_back(request.negative_prompt.value_or(""));
  texts.insert(texts.end(), request.negative_prompts.begin(), request.negative_prompts.end());
  return texts;
}

void check_request(const ImageRequest& request) {
  check_texts(request);
  for_each_field([&](const RequestField& field, auto member) {
    using Value = Given<std::remove_cvref_t<decltype(request.*member)>>;
    if constexpr (std::is_same_v<Value, std::int32_t>) check_whole(field, request.*member);
    if constexpr (std::is_same_v<Value, double>) check_number(field, request.*member);
  });
  if (pictures_of(request) > kMaxPictures)
    refuse(JobField::images_per_prompt,
           fmt::format("prompts × {} is {} pictures: at most {} are made",
                       quoted(JobField::images_per_prompt), pictures_of(request), kMaxPictures));
  check_own_settings(request);
  check_beginning(request);
  check_files(request);
  check_method(request);
  check_steps(request);
}

void check_degrees(const ImageRequest& request, const Parallelism& degrees) {
  std::int64_t actors = 1;
  for_each_degree([&](const DegreeField& line, auto member) {
    const auto field = parse_choice<JobField>(line.name).value();
    const std::int64_t degree = degrees.*member;
    if (degree < 1 || degree > line.most)
      refuse(field, fmt::format("{} is {}: a number from 1 to {} is needed", quoted(field), degree,
                                line.most));
    if (degrees.automatic && degree > 1)
      refuse(field, fmt::format("{} is {}, but {} is auto, which picks the degrees", quoted(field),
                                degree, quoted(JobField::parallel)));
    if (field != JobField::vae && (actors *= degree) > kMaxActors)
      refuse(field, fmt::format("{} is {}: the degrees need {} actors, and no cluster has more "
                                "than {}",
                                quoted(field), degree, actors, kMaxActors));
  });
  const auto stages = static_cast<std::int64_t>(degrees.stages.size());
  if (degrees.automatic && stages > 0)
    refuse(JobField::stages, fmt::format("{} is given, but {} is auto, which picks the degrees",
                                         quoted(JobField::stages), quoted(JobField::parallel)));
  if (stages > 0 && stages != degrees.pp)
    refuse(JobField::stages,
           fmt::format("{} lists {}, but {} is {}", quoted(JobField::stages),
                       counted(stages, "stage"), quoted(JobField::pp), degrees.pp));
  const std::int64_t replica = actors / degrees.dp;
  if (!degrees.automatic && degrees.vae > replica)
    refuse(JobField::vae,
           fmt::format("{} is {}, but the degrees give a picture {}", quoted(JobField::vae),
                       degrees.vae, counted(replica, "actor")));
  const auto pictures = pictures_of(request);
  if (degrees.dp > pictures)
    refuse(JobField::dp,
           fmt::format("{} is {}, but there {} to split (prompts × {})", quoted(JobField::dp),
                       degrees.dp,
                       (pictures == 1 ? "is only " : "are only ") + counted(pictures, "picture"),
                       quoted(JobField::images_per_prompt)));
  // Above which scale there is guidance, the model says; it is never below 0.
  if (degrees.cfg == 2 && request.guidance_scale && !(*request.guidance_scale > 0))
    refuse(JobField::cfg,
           fmt::format("{} is 2, but {} is {}: without guidance there is no second branch",
                       quoted(JobField::cfg), quoted(JobField::guidance_scale),
                       number_text(*request.guidance_scale)));
}

void check_terms(const JobSpec& spec) {
  if (spec.priority < -kMaxPriority || spec.priority > kMaxPriority)
    refuse(JobField::priority,
           fmt::format("{} is {}: a number from {} to {} is needed", quoted(JobField::priority),
                       spec.priority, -kMaxPriority, kMaxPriority));
  const auto check_name = [](JobField field, const std::string& name) {
    if (name.size() > kMaxShareBytes)
      refuse(field, fmt::format("{} has {} bytes: at most {} are taken", quoted(field), name.size(),
                                kMaxShareBytes));
  };
  check_name(JobField::share, spec.share);
  check_name(JobField::on_behalf_of, spec.on_behalf_of);
}

void check_submission(const JobSpec& spec) {
  check_request(spec.request);
  if (spec.request.strength)  // plans fill it in for others, too
    require_image(spec.request, JobField::strength, "the picture to begin with");
  check_degrees(spec.request, spec.parallelism);
  check_terms(spec);
}

std::string option_of(JobField field) {
  std::string_view option;
  for_each_field([&](const RequestField& line, auto) {
    if (line.field == field) option = line.option;
  });
  for_each_degree([&](const DegreeField& line, auto) {
    if (line.name == to_string(field)) option = line.option;
  });
  using enum JobField;
  for (const auto& [other, word] :
       {std::pair{prompts, kJobOptions.prompt}, std::pair{prompt_embeds, kJobOptions.prompt_embeds},
        std::pair{stages, kJobOptions.stages}, std::pair{parallel, kJobOptions.automatic},
        std::pair{init_latents, kJobOptions.init_latents},
        std::pair{init_image, kJobOptions.init_image},
        std::pair{mask_image, kJobOptions.mask_image}, std::pair{images, kJobOptions.images},
        std::pair{last_image, kJobOptions.last_image},
        std::pair{control_images, kJobOptions.control_images}, std::pair{model, kJobOptions.model},
        std::pair{priority, kJobOptions.priority}, std::pair{share, kJobOptions.share}})
    if (field == other) option = word;
  return std::string(option);
}

std::string name_fields(const std::string& text,
                        const std::function<std::string(JobField)>& name_of) {
  std::string named;
  for (std::size_t at = 0; at < text.size();) {
    const auto open = std::min(text.find('`', at), text.size());
    const auto close = open == text.size() ? text.npos : text.find('`', open + 1);
    named += text.substr(at, open - at);
    if (close == text.npos) return named + text.substr(open);
    const auto field = parse_choice<JobField>(text.substr(open + 1, close - open - 1));
    const auto name = field && *field != JobField::none ? name_of(*field) : "";
    if (name.empty()) {  // the second may be the first of another pair
      named += text.substr(open, close - open);
      at = close;
    } else {
      named += name;
      at = close + 1;
    }
  }
  return named;
}

}  // namespace troupe::wire
