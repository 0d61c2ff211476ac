#include <algorithm>
#include <filesystem>

#include "base/choices.h"
#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "client/cli/actor_options.h"
#include "client/cli/files.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "models/image/limits.h"
#include "models/image/load_picture.h"
#include "models/spec/lora_spec.h"
#include "models/spec/model_spec.h"
#include "models/spec/prompt_embeds.h"
#include "models/text/textual_inversion.h"
#include "transport/wire/job_field.h"
#include "transport/wire/request_limits.h"

namespace troupe::cli {

namespace {

namespace fs = std::filesystem;

using wire::kMaxLoraScale;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

Lora whole_path(Lora lora) {
  lora.path = absolute_path(lora.path);
  return lora;
}

}  // namespace

/// `FILE[:SCALE]`: what follows the last colon is the scale where it is a number, else part of the
/// name, which becomes absolute. Throws UsageError for a scale out of bounds, and where only the
/// part before the colon is a file here: then what follows was meant to be a scale.
Lora parse_lora(const std::string& text) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || is_file(text)) return whole_path({text});
  const std::string file = text.substr(0, colon);
  const std::string after = text.substr(colon + 1);
  const std::string option = "--lora \"" + text + "\": ";
  if (const auto scale = parse_number<double>(after)) {
    if (!(*scale >= -kMaxLoraScale && *scale <= kMaxLoraScale))
      throw UsageError(option + "the scale is not a number from " + number_text(-kMaxLoraScale) +
                       " to " + number_text(kMaxLoraScale));
    return whole_path({file, *scale});
  }
  if (!is_file(file)) return whole_path({text});
  throw UsageError(option + (after.empty() ? "there is no scale" : "the scale is no number") +
                   " after the colon, as in " + file + ":0.8");
}

/// `FILE.safetensors[:WORD]`: what follows the ending and a colon is the word. The file's name
/// becomes absolute. Throws UsageError where nothing follows the colon.
Embedding parse_embedding(const std::string& text) {
  static const std::string kEnd = ".safetensors:";
  const auto found = text.find(kEnd);
  if (found == std::string::npos || is_file(text)) return {absolute_path(text), ""};
  const auto colon = found + kEnd.size() - 1;
  if (colon + 1 == text.size())
    throw UsageError("--embedding \"" + text + "\": there is no word after the colon, as in " +
                     text + "my-cat");
  return {absolute_path(text.substr(0, colon)), text.substr(colon + 1)};
}

namespace {

constexpr std::size_t kLargestEmbeds = std::size_t{1} << 30;

/// The options' checks have let names of values through only.
template <Choice E>
E chosen(const std::string& name) {
  return parse_choice<E>(name).value();
}

/// Throws UsageError for text that is too long or not UTF-8. Text from a terminal or a file in
/// another encoding is not UTF-8.
void check_text(const std::string& option, const std::string& text, bool cleaned) {
  const auto check_size = [&](std::size_t most, const char* of) {
    if (text.size() > most)
      throw UsageError(
          fmt::format("{} has {} bytes: {}at most {} are taken", option, text.size(), of, most));
  };
  check_size(wire::kMaxPromptBytes, "");
  if (cleaned) check_size(wire::kMaxCleanedBytes, "with --clean-caption ");
  if (!is_utf8(text)) throw UsageError(option + " is not UTF-8 text");
  if (text.find('\0') != std::string::npos) throw UsageError(option + " has a zero byte in it");
}

void check_texts(const ImageRequest& request) {
  const auto& prompts = request.prompts;
  const std::string negative = request.negative_prompt.value_or("");
  std::size_t bytes = negative.size();
  for (const auto& text : request.negative_prompts) {
    check_text("--negative-prompt", text, request.clean_caption);
    bytes += text.size();
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::string option = "--prompt";
    if (prompts.size() > 1) option.append(" number ").append(std::to_string(i + 1));
    check_text(option, prompts[i], request.clean_caption);
    bytes += prompts[i].size();
  }
  check_text("--negative-prompt", negative, request.clean_caption);
  if (bytes > wire::kMaxTextBytes)
    throw UsageError(
        fmt::format("all prompts have {} bytes: at most {} are taken", bytes, wire::kMaxTextBytes));
}

/// Checks the steps, if they are given, and the patches.
void check_steps(const ImageRequest& request) {
  const bool exact = chosen<Method>(request.method) == Method::exact;
  const auto steps = counted(request.steps, "step");
  const bool given = request.steps > 0;
  if (!exact && given && request.warmup_steps > request.steps)
    throw UsageError(
        fmt::format("--warmup is {}, but --steps is {}", request.warmup_steps, request.steps));
  if (!request.refill_steps.empty() && exact && request.step_cache.empty())
    throw UsageError("--refill-steps needs --method pipefusion or distrifusion, or --step-cache");
  for (const int step : request.refill_steps) {
    if (given && step >= request.steps)
      throw UsageError(fmt::format("--refill-steps has {}, but of {} the last is {}", step, steps,
                                   request.steps - 1));
  }
  if (exact && chosen<GroupNormMoments>(request.group_norm) != GroupNormMoments::corrected)
    throw UsageError("--group-norm " + request.group_norm +
                     " does not go with --method exact, which has no patches");
  if (exact && chosen<PatchExchange>(request.exchange) != PatchExchange::stale)
    throw UsageError("--exchange " + request.exchange +
                     " does not go with --method exact, which has no patches");
  if (chosen<PatchExchange>(request.exchange) == PatchExchange::none &&
      chosen<GroupNormMoments>(request.group_norm) == GroupNormMoments::synchronous)
    throw UsageError(
        "--exchange none does not go with --group-norm synchronous: one exchanges, the other does "
        "not");
}

void check_degrees(const RequestOptions& options) {
  const Parallelism& degrees = options.parallelism;
  const std::int64_t replica = degrees.world() / degrees.dp;
  const std::int64_t pictures = std::int64_t{options.request.images_per_prompt} *
                                static_cast<std::int64_t>(options.request.prompts.size());
  if (pictures > wire::kMaxPictures)
    throw UsageError(fmt::format("prompts x --n is {} pictures: at most {} are made", pictures,
                                 wire::kMaxPictures));
  if (degrees.world() > wire::kMaxActors)
    throw UsageError(fmt::format("the degrees need {} actors: no cluster has more than {}",
                                 degrees.world(), wire::kMaxActors));
  if (pictures > 0 && degrees.dp > pictures)
    throw UsageError(fmt::format("--dp is {}, but there {}{} to split (prompts x --n)", degrees.dp,
                                 pictures == 1 ? "is only " : "are only ",
                                 counted(pictures, "picture")));
  if (!degrees.automatic && degrees.vae > replica)
    throw UsageError(fmt::format("--vae-parallel is {}, but the degrees give a picture {}",
                                 degrees.vae, counted(replica, "actor")));
  if (options.loras.size() > wire::kMaxLoras)
    throw UsageError(fmt::format("--lora is given {} times: at most {} are added",
                                 options.loras.size(), wire::kMaxLoras));
}

/// Settles the pictures' own settings. Of these the ones that are given once are everybody's.
void settle_own_settings(RequestOptions& options) {
  ImageRequest& request = options.request;
  if (!request.timesteps.empty() && !request.sigmas.empty())
    throw UsageError("--timesteps and --sigmas do not go together");
  for (const auto* given : {&request.timesteps, &request.sigmas}) {
    if (given->empty()) continue;
    if (options.steps_option && options.steps_option->count() > 0)
      throw UsageError("--steps does not go with --timesteps or --sigmas, which are as many");
    request.steps = static_cast<int>(given->size());
  }
  const auto pictures = static_cast<std::size_t>(picture_count(options));
  const auto& seeds = options.seeds;
  if (seeds.size() == 1) {
    request.seed = seeds.front();
  } else if (!seeds.empty()) {
    if (seeds.size() != pictures)
      throw UsageError(fmt::format("--seed is given {} times, but there {}{} (prompts x --n)",
                                   seeds.size(), pictures == 1 ? "is " : "are ",
                                   counted(pictures, "picture")));
    request.picture_seeds = seeds;
  }
  const auto& negatives = options.negative_prompts;
  if (negatives.size() == 1) {
    request.negative_prompt = negatives.front();
  } else if (!negatives.empty()) {
    if (negatives.size() != pictures && negatives.size() != request.prompts.size())
      throw UsageError(fmt::format("--negative-prompt is given {} times, but there {}{} and {}",
                                   negatives.size(), request.prompts.size() == 1 ? "is " : "are ",
                                   counted(request.prompts.size(), "prompt"),
                                   counted(pictures, "picture")));
    request.negative_prompts = negatives;
  }
}

/// A picture's file into `picture` of the submission's request; nothing where no path is given.
void read_picture(const std::string& option, const std::string& path, Submission& submission,
                  std::string ImageRequest::*picture) {
  if (path.empty()) return;
  submission.request.*picture = naming(option, [&] {
    auto bytes = read_file(path, models::kMaxPictureBytes);
    if (bytes.empty()) throw CommandError(Error{ErrorCode::bad_request, path + ": is empty"});
    return bytes;
  });
  const auto refuse = [&](const Error& error) {
    throw CommandError(Error{error.code, option + " " + path + ": " + error.what});
  };
  if (const auto error = client::check_init_image(submission.request)) refuse(*error);
  try {
    models::load_picture(submission.request.*picture);
  } catch (const std::runtime_error& error) {
    refuse({ErrorCode::bad_request, error.what()});
  }
}

}  // namespace

void take_prompts(RequestOptions& options, const std::string& verb) {
  auto& request = options.request;
  if (options.bare_prompt) {
    if (!request.prompts.empty() || !options.prompt_embeds_path.empty())
      throw UsageError("unexpected argument \"" + *options.bare_prompt +
                       "\"; a prompt of several words stands in quotes");
    request.prompts = {*options.bare_prompt};
  }
  if (options.prompt_embeds_path.empty()) {
    if (request.prompts.empty()) throw UsageError(verb + " needs --prompt or --prompt-embeds");
    return;
  }
  if (!request.prompts.empty()) throw UsageError("--prompt does not go with --prompt-embeds");
  auto embeds = naming("--prompt-embeds", [&] {
    return spec::parse_prompt_embeds(read_file(options.prompt_embeds_path, kLargestEmbeds),
                                     options.prompt_embeds_path, kLargestEmbeds,
                                     wire::kMaxPictures);
  });
  for (auto& [name, tensor] : embeds.tensors)
    request.prompt_embeds[name] = {.shape = std::move(tensor.shape),
                                   .data = std::move(tensor.data)};
  if (!options.negative_prompts.empty() && request.prompt_embeds.contains("negative_prompt_embeds"))
    throw UsageError(
        "--negative-prompt does not go with this --prompt-embeds: negative_prompt_embeds stand in "
        "the file");
  request.prompts.resize(embeds.prompts);
}

void settle(RequestOptions& options) {
  ImageRequest& request = options.request;
  settle_own_settings(options);
  check_texts(request);
  if (options.method.empty()) {
    request.method = to_string(request.num_pipeline_patch > 1 ? Method::pipefusion : Method::exact);
  } else {
    request.method = options.method;
  }
  const bool exact = chosen<Method>(request.method) == Method::exact;
  if (exact && request.num_pipeline_patch > 1) {
    throw UsageError(
        fmt::format("--method exact does not go with --patches {}: only pipefusion and "
                    "distrifusion have patches",
                    request.num_pipeline_patch));
  }
  if (!options.init_image_path.empty() && !options.init_latents_path.empty())
    throw UsageError("--init-image does not go with --init-latents");
  if (request.strength && options.init_image_path.empty())
    throw UsageError("--strength needs --init-image");
  if (!options.mask_path.empty() && options.init_image_path.empty())
    throw UsageError("--mask needs --init-image");
  if (exact && chosen<KvUse>(request.kv) == KvUse::predict) {
    throw UsageError("--kv predict needs --patches above 1: exact has no K,V that are not fresh");
  }
  if (request.step_cache.empty() && request.step_cache_threshold != 0)
    throw UsageError("--step-cache-threshold needs --step-cache first-block or teacache");
  Parallelism& degrees = options.parallelism;
  degrees.automatic = options.parallel == "auto";
  if (degrees.automatic && (degrees.world() > 1 || degrees.vae > 1 || !degrees.stages.empty())) {
    throw UsageError(
        "--parallel auto picks the degrees: it does not go with --dp, --cfg, --pp, --ulysses, "
        "--ring, --tp, --vae-parallel or --stages");
  }
  const auto& stages = degrees.stages;
  if (!stages.empty() && static_cast<int>(stages.size()) != degrees.pp) {
    throw UsageError(fmt::format("--stages lists {}, but --pp is {}",
                                 counted(stages.size(), "stage"), degrees.pp));
  }
  if (options.parallelism.cfg == 2 && request.guidance_scale && !(*request.guidance_scale > 1)) {
    throw UsageError("--cfg 2 needs guidance: with --guidance 1 or less there is only one branch");
  }
  check_steps(request);
  check_degrees(options);
}

Submission make_submission(const RequestOptions& options) {
  Submission submission;
  submission.request = options.request;
  submission.parallelism = options.parallelism;
  submission.priority = options.priority;
  submission.share = options.share;
  submission.elastic = options.elastic;
  submission.may_batch = options.may_batch;
  submission.model = absolute_path(options.model);
  if (!options.init_latents_path.empty())
    submission.request.init_latents =
        naming("--init-latents", [&] { return read_latents(options.init_latents_path); });
  read_picture("--init-image", options.init_image_path, submission, &ImageRequest::init_image);
  read_picture("--mask", options.mask_path, submission, &ImageRequest::mask_image);
  for (const std::string& lora : options.loras)
    submission.request.loras.push_back(parse_lora(lora));
  for (const std::string& embedding : options.embeddings)
    submission.request.embeddings.push_back(parse_embedding(embedding));
  return submission;
}

spec::ModelSpec read_model(const Submission& submission) {
  auto model = read_model_folder(submission.model);
  for (const auto& lora : submission.request.loras)
    naming("--lora", [&] { return spec::read_lora_spec(lora.path, model); });
  const auto learned = naming("--embedding", [&] {
    std::vector<models::TextualInversionFile> files;
    for (const auto& embedding : submission.request.embeddings)
      files.push_back({embedding.path, embedding.token});
    return models::read_textual_inversions(files, model);
  });
  auto texts = submission.request.prompts;
  texts.push_back(submission.request.negative_prompt.value_or(""));
  texts.insert(texts.end(), submission.request.negative_prompts.begin(),
               submission.request.negative_prompts.end());
  naming("prompt", [&] { models::check_learned_words(texts, learned, model); });
  return model;
}

std::uint64_t accepted(const Result<std::uint64_t>& job, const Submission& submission) {
  if (job) return job.value();
  Error error = job.error();
  const std::string what = one_line(error.what);
  if (error.field == to_string(wire::JobField::model) && !submission.model.empty())
    error.what = "--model " + what + model_hint(submission.model);
  else if (error.field == to_string(wire::JobField::loras))
    error.what = "--lora " + what;
  else if (error.field == to_string(wire::JobField::embeddings))
    error.what = "--embedding " + what;
  throw CommandError(error);
}

int picture_count(const RequestOptions& options) {
  return static_cast<int>(options.request.prompts.size()) * options.request.images_per_prompt;
}

}  // namespace troupe::cli
