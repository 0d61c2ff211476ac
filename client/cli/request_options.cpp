#include "client/cli/request_options.h"

#include <map>

#include "base/number_text.h"
#include "base/parse_number.h"
#include "client/cli/checks.h"
#include "client/cli/suggest.h"
#include "models/spec/request_limits.h"
#include "models/spec/scheduler_config.h"

namespace troupe::cli {
namespace {

const std::map<std::string, std::string> kDtypes = {{"float32", "float32"},   {"fp32", "float32"},
                                                    {"bfloat16", "bfloat16"}, {"bf16", "bfloat16"},
                                                    {"float16", "float16"},   {"fp16", "float16"}};

/// CLI11 would take -1 for 2^64 - 1.
CLI::Validator seed_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (parse_number<std::uint64_t>(text)) return "";
        return "\"" + text + "\" is not a whole number from 0 to 2^64 - 1";
      },
      "");
}

CLI::Validator dtype_check() {
  static const std::vector<std::string> kLong = {"float32", "bfloat16", "float16"};
  return with_words(CLI::Validator(
                        [](std::string& text) -> std::string {
                          const auto found = kDtypes.find(text);
                          if (found == kDtypes.end())
                            return not_one_of(text, kLong, {"fp32", "bf16", "fp16"});
                          text = found->second;
                          return "";
                        },
                        ""),
                    kLong);
}

CLI::Validator weight_dtype_check() {
  static const std::vector<std::string> kSmall = {"int8", "fp8"};
  return with_words(
      CLI::Validator(
          [](std::string& text) -> std::string {
            if (!kDtypes.contains(text)) return one_of(kSmall)(text);
            return "\"" + text +
                   "\" is not int8 or fp8; left out, weights are kept as --dtype says";
          },
          ""),
      kSmall);
}

/// A diffusers class name is left to the model's plan, which knows them all.
CLI::Validator sampler_check() {
  return with_words(CLI::Validator(
                        [](std::string& text) -> std::string {
                          if (text.empty() || text.ends_with("Scheduler")) return "";
                          return one_of(spec::sampler_names())(text);
                        },
                        ""),
                    spec::sampler_names());
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
      ->check(whole(1, spec::kMaxPictures))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--height", request.height, "Pixels; default: the model's native size")
      ->check(whole(1, spec::kMaxPixels))
      ->type_name("N")
      ->group(group);
  app.add_option("--width", request.width, "Pixels; default: the model's native size")
      ->check(whole(1, spec::kMaxPixels))
      ->type_name("N")
      ->group(group);
  app.add_option("--frames", request.num_frames,
                 "Of a video: 1, 5, 9, …; default: the model's own number")
      ->check(whole(1, spec::kMaxFrames))
      ->type_name("N")
      ->group(group);
  app.add_option("--steps", request.steps, "Sampler steps")
      ->check(whole(1, 100000))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option("--guidance", request.guidance_scale, "Guidance scale; 1 or less = no guidance")
      ->check(number(0, 1e4))
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
      ->check(sampler_check())
      ->type_name("NAME")
      ->group(group);
  app.add_option("--dtype", request.dtype, "Type that is computed in: float32, bfloat16 or float16")
      ->transform(dtype_check())
      ->type_name("TYPE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--weight-dtype", request.weight_dtype,
                 "How the denoiser keeps its weights: int8 (CPU) or fp8 (GPU); default: as --dtype")
      ->check(weight_dtype_check())
      ->type_name("TYPE")
      ->group(group);
  app.add_option("--noise-dtype", request.noise_dtype,
                 "Type that noise is drawn in: float32, or model (that of --dtype)")
      ->check(one_of({"float32", "model"}))
      ->type_name("TYPE")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-sequence-length", request.max_sequence_length,
                 "Text tokens at most (default: as many as the model is used to)")
      ->check(whole(1, spec::kMaxTextTokens))
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
      ->check(not_empty())
      ->type_name("F.safetensors")
      ->group(group);
  app.add_option("--init-image", options.init_image_path,
                 "Start from this picture, brought to the request's size, and noise")
      ->check(not_empty())
      ->type_name("FILE.png")
      ->group(group);
  app.add_option("--strength", options.strength,
                 "With --init-image: how much of it is made anew, above 0, up to 1 (all)")
      ->check(number_above(0, 1))
      ->type_name("S")
      ->default_str(number_text(request.strength))
      ->group(group);
  app.add_option("--guidance-rescale", request.guidance_rescale,
                 "How far guided predictions get the deviation of the text's own, 0 to 1")
      ->check(number(0, 1))
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

}  // namespace troupe::cli
