#include "client/cli/request_options.h"

#include <charconv>
#include <filesystem>
#include <map>

#include "client/cli/files.h"
#include "client/cli/latents_file.h"
#include "client/cli/verb.h"
#include "client/init_image.h"
#include "models/image/limits.h"

namespace troupe::cli {
namespace {

constexpr int kMany = 1 << 20;

const std::map<std::string, std::string> kDtypes = {{"float32", "float32"},   {"fp32", "float32"},
                                                    {"bfloat16", "bfloat16"}, {"bf16", "bfloat16"},
                                                    {"float16", "float16"},   {"fp16", "float16"}};

/// What follows the last colon is the scale where it is a number.
Lora parse_lora(const std::string& text) {
  Lora lora{text};
  if (const auto colon = text.rfind(':'); colon != std::string::npos && colon > 0) {
    const char* end = text.data() + text.size();
    double scale = 0;
    const auto [last, error] = std::from_chars(text.data() + colon + 1, end, scale);
    if (error == std::errc() && last == end) lora = {text.substr(0, colon), scale};
  }
  lora.path = std::filesystem::absolute(lora.path).lexically_normal().string();
  return lora;
}

/// CLI11 would take -1 for 2^64 - 1.
CLI::Validator seed_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        std::uint64_t seed = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
        if (error == std::errc() && end == text.data() + text.size()) return "";
        return "Value " + text + " is not a number from 0 to 2^64 - 1";
      },
      "");
}

CLI::Validator dtype_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const auto found = kDtypes.find(text);
        if (found == kDtypes.end()) return text + " is not float32, bfloat16 or float16";
        text = found->second;
        return "";
      },
      "");
}

}  // namespace

void add_request_options(CLI::App& app, RequestOptions& options) {
  ImageRequest& request = options.request;
  const std::string group = "Picture";
  app.add_option("--model", options.model, "Model folder in diffusers layout")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--prompt", request.prompts, "What to show; repeat it for several pictures")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--negative-prompt", request.negative_prompt, "What not to show")
      ->type_name("TEXT")
      ->group(group);
  app.add_option("--n", request.images_per_prompt, "Pictures per prompt")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--height", request.height, "Pixels; default: the model's native size")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("N")
      ->group(group);
  app.add_option("--width", request.width, "Pixels; default: the model's native size")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("N")
      ->group(group);
  app.add_option("--frames", request.num_frames,
                 "Of a video: 1, 5, 9, …; default: the model's own number")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("N")
      ->group(group);
  app.add_option("--steps", request.steps, "Sampler steps")
      ->check(quiet(CLI::Range(1, 100000)))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--guidance", request.guidance_scale, "Guidance scale; 1 or less = no guidance")
      ->type_name("X")
      ->capture_default_str()
      ->group(group);
  app.add_option("--seed", request.seed, "Seed of the noise, as torch's CPU generator takes it")
      ->check(seed_check())
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--sampler", request.sampler,
                 "dpmsolver++, unipc, ddim, euler, … (docs/commands.md); default: the model's own")
      ->type_name("NAME")
      ->group(group);
  app.add_option("--dtype", request.dtype, "Type that is computed in: float32, bfloat16 or float16")
      ->transform(dtype_check())
      ->type_name("TYPE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--noise-dtype", request.noise_dtype,
                 "Type that noise is drawn in: float32, or model (that of --dtype)")
      ->check(quiet(CLI::IsMember({"float32", "model"})))
      ->type_name("TYPE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-sequence-length", request.max_sequence_length,
                 "Text tokens at most (default: as many as the model is used to)")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("N")
      ->group(group);
  app.add_flag("--resolution-binning", request.resolution_binning,
               "Compute at the nearest size the model was trained at, then resize")
      ->group(group);
  app.add_flag("--clean-caption", request.clean_caption,
               "Clean the prompt as the model's training did")
      ->group(group);
  app.add_flag("--vae-tiling", request.vae_tiling,
               "Decode in overlapping tiles: less memory, seams blended as in diffusers")
      ->group(group);
  app.add_option(
         "--init-latents", options.init_latents_path,
         "Start from tensor \"latents\" [n, 4, h/8, w/8] of this file, not from the seed's noise")
      ->type_name("F.safetensors")
      ->group(group);
  app.add_option("--init-image", options.init_image_path,
                 "Start from this picture, brought to the request's size, and noise")
      ->check(not_empty())
      ->type_name("FILE.png")
      ->group(group);
  app.add_option("--strength", request.strength,
                 "With --init-image: how much of it is made anew, above 0, up to 1 (all)")
      ->check(quiet(CLI::Range(0.0, 1.0)))
      ->type_name("S")
      ->capture_default_str()
      ->group(group);
  app.add_option("--guidance-rescale", request.guidance_rescale,
                 "How far guided predictions get the deviation of the text's own, 0 to 1")
      ->check(quiet(CLI::Range(0.0, 1.0)))
      ->type_name("PHI")
      ->capture_default_str()
      ->group(group);
  app.add_option("--lora", options.loras,
                 "Add these low-rank weights (diffusers' or kohya's names); repeat it for several")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->type_name("FILE[:SCALE]")
      ->group(group);
}

void add_degree_options(CLI::App& app, RequestOptions& options) {
  const std::string group =
      "Parallelism (--method, --patches, --warmup, --kv, --step-cache, --group-norm and --exchange "
      "change the picture, the rest does not)";
  app.add_option("--method", options.method,
                 "exact, pipefusion or distrifusion; default: pipefusion when --patches > 1")
      ->check(quiet(CLI::IsMember({"exact", "pipefusion", "distrifusion"})))
      ->type_name("NAME")
      ->group(group);
  app.add_option("--patches", options.request.num_pipeline_patch,
                 "Runs of token rows that pipefusion and distrifusion split a picture into")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("M")
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup", options.request.warmup_steps,
                 "Synchronous steps at the start of pipefusion and distrifusion")
      ->check(quiet(CLI::Range(0, kMany)))
      ->type_name("K")
      ->capture_default_str()
      ->group(group);
  app.add_option("--kv", options.request.kv,
                 "K,V that are not fresh: stale (as they are) or predict (extrapolated)")
      ->check(quiet(CLI::IsMember({"stale", "predict"})))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--group-norm", options.request.group_norm,
                 "U-Nets by patches: moments corrected, stale, synchronous or separate")
      ->check(quiet(CLI::IsMember({"corrected", "stale", "synchronous", "separate"})))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option(
         "--exchange", options.request.exchange,
         "U-Nets by patches, after the warm-up: stale, none (of the warm-up) or all (fresh)")
      ->check(quiet(CLI::IsMember({"stale", "none", "all"})))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(group);
  app.add_option("--step-cache", options.request.step_cache,
                 "Skip the blocks in steps that change little: first-block or teacache")
      ->check(quiet(CLI::IsMember({"first-block", "teacache"})))
      ->type_name("NAME")
      ->group(group);
  app.add_option("--step-cache-threshold", options.request.step_cache_threshold,
                 "Relative change up to which it skips; default: 0.05, with teacache 0.25")
      ->check(quiet(CLI::Range(0.0, 10.0)))
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            return std::strtod(text.c_str(), nullptr) > 0 ? "" : "must be above 0";
          },
          ""))
      ->type_name("T")
      ->group(group);
  app.add_option("--refill-steps", options.request.refill_steps,
                 "Steps after the warm-up computed whole, as a report names them after a loss")
      ->delimiter(',')
      ->check(quiet(CLI::Range(0, kMany)))
      ->type_name("LIST")
      ->group(group);
  app.add_option("--dp", options.parallelism.dp, "Replicas that pictures are split over")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--cfg", options.parallelism.cfg,
                 "1 or 2 = the guidance branches on actors of their own")
      ->check(quiet(CLI::Range(1, 2)))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--pp", options.parallelism.pp,
                 "Pipeline stages that the model's blocks are split over")
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  const auto add_degree = [&](const char* name, int& degree, const char* description) {
    app.add_option(name, degree, description)
        ->check(quiet(CLI::Range(1, kMany)))
        ->type_name("N")
        ->capture_default_str()
        ->group(group);
  };
  add_degree("--ulysses", options.parallelism.ulysses,
             "Sequence parallel: tokens split, heads exchanged (all-to-all)");
  add_degree("--ring", options.parallelism.ring,
             "Sequence parallel: tokens split, K,V blocks travel; with distrifusion, patches side "
             "by side");
  add_degree("--tp", options.parallelism.tp,
             "Tensor parallel: heads and feed-forward columns split");
  add_degree("--vae-parallel", options.parallelism.vae,
             "Actors that decode a picture together, by rows");
  app.add_option("--stages", options.parallelism.stages,
                 "Blocks of each pipeline stage, as 7,7,7,7; default: split by cost")
      ->delimiter(',')
      ->check(quiet(CLI::Range(1, kMany)))
      ->type_name("LIST")
      ->group(group);
  app.add_option("--parallel", options.parallel, "auto = pick the degrees for the actors at hand")
      ->check(quiet(CLI::IsMember({"auto"})))
      ->type_name("auto")
      ->group(group);
}

void add_elastic_option(CLI::App& app, RequestOptions& options) {
  app.add_flag("--elastic", options.elastic,
               "Go on with fewer actors when lost ones do not come back: degrees are picked anew");
}

void add_queue_options(CLI::App& app, RequestOptions& options) {
  const std::string group = "Queue";
  app.add_option("--priority", options.priority, "Jobs of higher priority go first, -100 to 100")
      ->check(quiet(CLI::Range(-100, 100)))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--share", options.share,
                 "Whom the job counts for: shares get as much as each other; default: the client")
      ->check(CLI::Validator(
          [](std::string& text) -> std::string {
            return text.size() <= 64 ? "" : "the name is longer than 64 bytes";
          },
          ""))
      ->type_name("NAME")
      ->group(group);
}

void settle(RequestOptions& options) {
  ImageRequest& request = options.request;
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
  if (options.init_image_path.empty() && request.strength != ImageRequest{}.strength)
    throw UsageError("--strength needs --init-image");
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
  if (!options.model.empty())
    submission.model = std::filesystem::absolute(options.model).lexically_normal().string();
  if (!options.init_latents_path.empty())
    submission.request.init_latents = read_latents(options.init_latents_path);
  if (!options.init_image_path.empty())
    submission.request.init_image = read_file(options.init_image_path, models::kMaxPngBytes);
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
