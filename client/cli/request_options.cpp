#include "client/cli/request_options.h"

#include "client/cli/field_options.h"
#include "client/cli/model_option.h"
#include "client/cli/options.h"

namespace troupe::cli {

void add_request_options(Options& app, RequestOptions& options) {
  ImageRequest& request = options.request;
  const std::string group = "Picture";
  add_model_plugin_option(app);
  app.usual_help();
  app.add_option("-m," + std::string(wire::kJobOptions.model), options.model,
                 "Model folder in diffusers layout")
      ->type_name("DIR")
      ->group(kUsualOptions);
  app.add_option("-p,--prompt", request.prompts, "What to show; repeat it for several pictures")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(kUsualOptions);
  app.add_option("PROMPT", options.bare_prompt, "The same as --prompt, in its place");
  app.add_option("--prompt-embeds", options.prompt_embeds_path,
                 "Instead of prompts: the text encoders' output, by diffusers' names "
                 "(prompt_embeds, negative_prompt_embeds, …)")
      ->check(not_empty())
      ->type_name("F.safetensors")
      ->group(group);
  app.add_option(std::string(wire::kRequestFields.negative_prompt.option), options.negative_prompts,
                 "What not to show; repeat it for each prompt, or each picture, to have its own")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(kUsualOptions);
  app.add_option("-s," + std::string(wire::kRequestFields.seed.option), options.seeds,
                 "Seed of the noise, as torch's CPU generator takes it, or random; repeat it for "
                 "each picture to have its own")
      ->type_name("N")
      ->allow_extra_args(false)
      ->transform(seed_check())
      ->default_str("0")
      ->group(kUsualOptions);
  add_field_options(app, request, wire::Group::picture, group);
  options.steps_option = app.get_option(std::string(wire::kRequestFields.steps.option));
  app.add_option(std::string(wire::kJobOptions.init_latents), options.init_latents_path,
                 "Start from tensor \"latents\" [n, channels, h/8, w/8] of this file, not from the "
                 "seed's noise")
      ->check(not_empty())
      ->type_name("F.safetensors")
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.init_image), options.init_image_path,
                 "Start from this picture, brought to the request's size, and noise")
      ->check(not_empty())
      ->type_name("FILE")
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.mask_image), options.mask_path,
                 "With --init-image: paint only where this picture is white, keep the rest")
      ->check(not_empty())
      ->type_name("FILE")
      ->group(group);
  app.add_option(
         std::string(wire::kRequestFields.strength.option), request.strength,
         "With --init-image: how much of it is made anew, above 0, up to 1 (all); default: the "
         "model's own")
      ->check(number_above(0, 1))
      ->type_name("S")
      ->group(group);
  app.add_option(std::string(wire::kRequestFields.loras.option), options.loras,
                 "Add these low-rank weights (diffusers' or kohya's names); repeat it for several")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->type_name("FILE[:SCALE]")
      ->group(group);
  app.add_option(std::string(wire::kRequestFields.embeddings.option), options.embeddings,
                 "Let prompts use this learned word (textual inversion); repeat it for several")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->type_name("FILE[:WORD]")
      ->group(group);
}

}  // namespace troupe::cli
