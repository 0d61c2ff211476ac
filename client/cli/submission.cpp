#include <filesystem>

#include "client/cli/files.h"
#include "client/cli/latents_file.h"
#include "client/cli/lora_option.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "client/init_image.h"
#include "models/image/limits.h"
#include "models/spec/counted.h"
#include "models/spec/utf8.h"

namespace troupe::cli {

namespace {

/// What comes from a terminal or a file in another encoding is none.
void check_text(const std::string& option, const std::string& text) {
  if (!spec::is_utf8(text)) throw UsageError(option + " is not UTF-8 text");
  if (text.find('\0') != std::string::npos) throw UsageError(option + " has a zero byte in it");
}

void check_texts(const ImageRequest& request) {
  const auto& prompts = request.prompts;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    std::string option = "--prompt";
    if (prompts.size() > 1) option.append(" number ").append(std::to_string(i + 1));
    check_text(option, prompts[i]);
  }
  check_text("--negative-prompt", request.negative_prompt);
}

}  // namespace

void settle(RequestOptions& options) {
  ImageRequest& request = options.request;
  check_texts(request);
  if (options.method.empty()) {
    request.method = request.num_pipeline_patch > 1 ? "pipefusion" : "exact";
  } else {
    request.method = options.method;
  }
  if (request.method == "exact" && request.num_pipeline_patch > 1) {
    throw UsageError("--method exact does not go with --patches " +
                     std::to_string(request.num_pipeline_patch) +
                     ": only pipefusion and distrifusion have patches");
  }
  if (!options.init_image_path.empty() && !options.init_latents_path.empty())
    throw UsageError("--init-image does not go with --init-latents");
  if (options.strength && options.init_image_path.empty())
    throw UsageError("--strength needs --init-image");
  request.strength = options.strength.value_or(request.strength);
  if (request.kv == "predict" && request.method == "exact") {
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
    throw UsageError("--stages lists " + spec::counted(stages.size(), "stage") + ", but --pp is " +
                     std::to_string(degrees.pp));
  }
  if (options.parallelism.cfg == 2 && !(request.guidance_scale > 1)) {
    throw UsageError("--cfg 2 needs guidance: with --guidance 1 or less there is only one branch");
  }
}

Submission make_submission(const RequestOptions& options) {
  Submission submission;
  submission.request = options.request;
  submission.parallelism = options.parallelism;
  submission.priority = options.priority;
  submission.share = options.share;
  submission.elastic = options.elastic;
  submission.may_batch = options.may_batch;
  if (!options.model.empty())
    submission.model = std::filesystem::absolute(options.model).lexically_normal().string();
  if (!options.init_latents_path.empty())
    submission.request.init_latents = read_latents(options.init_latents_path);
  if (!options.init_image_path.empty()) {
    submission.request.init_image = read_file(options.init_image_path, models::kMaxPngBytes);
    if (submission.request.init_image.empty())
      throw CommandError(Error{"bad_request", options.init_image_path + ": is empty"});
  }
  if (const auto error = client::check_init_image(submission.request))
    throw CommandError(Error{error->code, options.init_image_path + ": " + error->what});
  for (const std::string& lora : options.loras)
    submission.request.loras.push_back(parse_lora(lora));
  return submission;
}

int picture_count(const RequestOptions& options) {
  return static_cast<int>(options.request.prompts.size()) * options.request.images_per_prompt;
}

}  // namespace troupe::cli
