#include <algorithm>
#include <filesystem>

#include "base/choices.h"
#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "client/cli/actor_options.h"
#include "client/cli/files.h"
#include "client/cli/named_model.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/convert.h"
#include "models/image/limits.h"
#include "models/image/load_picture.h"
#include "models/spec/hub.h"
#include "models/spec/lora_spec.h"
#include "models/spec/model_spec.h"
#include "models/spec/prompt_embeds.h"
#include "models/text/textual_inversion.h"
#include "transport/wire/job_field.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"
#include "transport/wire/request_rules.h"

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
Lora parse_lora(const std::string& text, std::string_view name) {
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || is_file(text)) return whole_path({text});
  const std::string file = text.substr(0, colon);
  const std::string after = text.substr(colon + 1);
  const std::string option = std::string(name) + " \"" + text + "\": ";
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

/// Settles what may be given once for all pictures, or for each of them.
void settle_own_settings(RequestOptions& options) {
  ImageRequest& request = options.request;
  for (const auto* given : {&request.timesteps, &request.sigmas}) {
    if (given->empty()) continue;
    if (options.steps_option && options.steps_option->count() > 0)
      throw UsageError("--steps does not go with --timesteps or --sigmas, which are as many");
    request.steps = static_cast<int>(given->size());
  }
  if (options.seeds.size() == 1)
    request.seed = options.seeds.front();
  else
    request.picture_seeds = options.seeds;
  if (options.negative_prompts.size() == 1)
    request.negative_prompt = options.negative_prompts.front();
  else
    request.negative_prompts = options.negative_prompts;
}

Submission without_files(const RequestOptions& options) {
  Submission submission;
  submission.request = options.request;
  submission.parallelism = options.parallelism;
  submission.priority = options.priority;
  submission.share = options.share;
  submission.elastic = options.elastic;
  submission.may_batch = options.may_batch;
  submission.model = model_for_cluster(options.model);
  for (const std::string& lora : options.loras)
    submission.request.loras.push_back(parse_lora(lora, wire::kRequestFields.loras.option));
  for (const std::string& lora : options.second_loras) {
    submission.request.loras.push_back(parse_lora(lora, wire::kJobOptions.second_lora));
    submission.request.loras.back().of_second = true;
  }
  for (const std::string& embedding : options.embeddings)
    submission.request.embeddings.push_back(parse_embedding(embedding));
  for (std::string& net : submission.request.controlnets)
    net = model_for_cluster(net, wire::kRequestFields.controlnets.option);
  return submission;
}

/// Holds the options against the rules of every request. Files to begin with are not read yet: what
/// counts is that there are some.
void check_rules(const RequestOptions& options) {
  wire::JobSpec spec = take(client::to_wire(without_files(options)));
  auto& request = spec.request;
  if (request.prompts.empty()) request.prompts = {""};  // take_prompts says where one is needed
  request.init_image_bytes = options.init_image_path.empty() ? 0 : 1;
  request.mask_image_bytes = options.mask_path.empty() ? 0 : 1;
  request.images.assign(options.image_paths.size(), {.bytes = 1});
  request.last_image.bytes = options.last_image_path.empty() ? 0 : 1;
  request.control_images.assign(options.control_image_paths.size(), {.bytes = 1});
  request.init_latents_bytes = options.init_latents_path.empty() ? 0 : 1;
  try {
    wire::check_submission(spec);
  } catch (const wire::BadField& error) {
    throw UsageError(in_options(error.what()));
  }
}

/// A picture's file into `picture`, which is of the submission's request; nothing where no path is
/// given.
void read_picture(const std::string& option, const std::string& path, const Submission& submission,
                  std::string& picture) {
  if (path.empty()) return;
  picture = naming(option, [&] {
    auto bytes = read_file(path, models::kMaxPictureBytes);
    if (bytes.empty()) throw CommandError(Error{ErrorCode::bad_request, path + ": is empty"});
    return bytes;
  });
  const auto refuse = [&](const Error& error) {
    throw CommandError(Error{error.code, option + " " + path + ": " + error.what});
  };
  if (const auto error = client::check_pictures(submission.request)) refuse(*error);
  try {
    models::load_picture(picture);
  } catch (const std::runtime_error& error) {
    refuse({ErrorCode::bad_request, error.what()});
  }
}

}  // namespace

namespace {

/// Takes a prompt, or a model and a prompt, that stand without options.
void take_bare_words(RequestOptions& options) {
  auto& words = options.bare_words;
  if (words.empty()) return;
  const bool named = options.model_option && options.model_option->count() > 0;
  const bool prompted = !options.request.prompts.empty() || !options.prompt_embeds_path.empty();
  const std::size_t most = prompted ? 0 : named ? 1 : 2;
  if (words.size() > most)
    throw UsageError(
        "unexpected argument \"" + words.at(most) +
        "\"; a prompt of several words stands in quotes" +
        (words.size() == 2 && named ? ", and a model's name goes without --model" : ""));
  options.request.prompts = {words.back()};
  if (words.size() == 2) options.model = words.front();
  words.clear();
}

}  // namespace

void take_prompts(RequestOptions& options, const std::string& verb) {
  auto& request = options.request;
  take_bare_words(options);
  if (options.prompt_embeds_path.empty()) {
    if (request.prompts.empty()) throw UsageError(verb + " needs --prompt or --prompt-embeds");
    return;
  }
  if (!request.prompts.empty()) {
    try {
      wire::refuse_both(wire::JobField::prompts, wire::JobField::prompt_embeds);
    } catch (const wire::BadField& error) {
      throw UsageError(in_options(error.what()));
    }
  }
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
  request.method = options.method;
  if (request.method.empty())
    request.method = to_string(request.num_pipeline_patch > 1 ? Method::pipefusion : Method::exact);
  options.parallelism.automatic = options.parallel == "auto";
  check_rules(options);
}

Submission make_submission(const RequestOptions& options) {
  Submission submission = without_files(options);
  if (!options.init_latents_path.empty())
    submission.request.init_latents =
        naming("--init-latents", [&] { return read_latents(options.init_latents_path); });
  ImageRequest& request = submission.request;
  read_picture("--init-image", options.init_image_path, submission, request.init_image);
  read_picture("--mask", options.mask_path, submission, request.mask_image);
  for (const auto& path : options.image_paths)
    read_picture("--image", path, submission, request.images.emplace_back());
  read_picture("--last-image", options.last_image_path, submission, request.last_image);
  for (const auto& path : options.control_image_paths)
    read_picture("--control-image", path, submission, request.control_images.emplace_back());
  return submission;
}

spec::ModelSpec read_model(const Submission& submission, std::vector<std::string>* warnings) {
  auto model = read_model_folder(submission.model);
  for (const auto& net : submission.request.controlnets)
    naming(std::string(wire::kRequestFields.controlnets.option),
           [&] { spec::add_controlnet(model, spec::model_folder(net, spec::HubContent::part)); });
  for (const auto& lora : submission.request.loras) {
    const std::string option(lora.of_second ? wire::kJobOptions.second_lora
                                            : wire::kRequestFields.loras.option);
    const auto read =
        naming(option, [&] { return spec::read_lora_spec(lora.path, model, lora.of_second); });
    if (warnings != nullptr && !read.unused.empty())
      warnings->push_back(option + " " + read.unused);
  }
  const auto learned = naming("--embedding", [&] {
    std::vector<models::TextualInversionFile> files;
    for (const auto& embedding : submission.request.embeddings)
      files.push_back({embedding.path, embedding.token});
    return models::read_textual_inversions(files, model);
  });
  const auto texts = wire::texts_of(take(client::to_wire(submission)).request);
  naming("prompt", [&] { models::check_learned_words(texts, learned, model); });
  return model;
}

std::uint64_t accepted(const Result<std::uint64_t>& job, const Submission& submission) {
  if (job) return job.value();
  Error error = job.error();
  const auto field = parse_choice<wire::JobField>(error.field);
  error.what = in_options(one_line(error.what));
  const bool is_model = field == wire::JobField::model && !submission.model.empty();
  if (is_model || field == wire::JobField::loras || field == wire::JobField::embeddings ||
      field == wire::JobField::controlnets) {
    const std::string option = wire::option_of(*field);
    if (!without_rooms(error.what).starts_with(option)) error.what = option + " " + error.what;
  }
  if (is_model) error.what += model_hint(submission.model);
  throw CommandError(error);
}

int picture_count(const RequestOptions& options) {
  return static_cast<int>(options.request.prompts.size()) * options.request.images_per_prompt;
}

}  // namespace troupe::cli
