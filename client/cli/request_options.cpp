#include "client/cli/request_options.h"

#include <map>
#include <set>
#include <type_traits>

#include "base/format.h"
#include "base/suggest.h"
#include "client/cli/actor_options.h"
#include "client/cli/options.h"
#include "models/spec/sampler_alias.h"
#include "models/spec/scheduler_config.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"

namespace troupe::cli {

namespace {

const std::map<std::string, std::string> kComputeTypes = {
    {"float32", "float32"}, {"fp32", "float32"},    {"bfloat16", "bfloat16"},
    {"bf16", "bfloat16"},   {"float16", "float16"}, {"fp16", "float16"}};

/// Short names become long ones.
Check compute_type_check() {
  static const auto kLong = choice_words<ComputeType>();
  return Check(
      [](std::string& text) -> std::string {
        const auto found = kComputeTypes.find(text);
        if (found == kComputeTypes.end()) return not_one_of(text, kLong, {"fp32", "bf16", "fp16"});
        text = found->second;
        return "";
      },
      kLong);
}

Check weight_check() {
  static const auto kSmall = choice_words<WeightChoice>();
  return Check(
      [](std::string& text) -> std::string {
        if (!kComputeTypes.contains(text)) return one_of(kSmall)(text);
        return "\"" + text + "\" is not int8 or fp8; left out, weights are kept as --dtype says";
      },
      kSmall);
}

/// Other tools' names become ours. A diffusers class name is left to the model's plan, which knows
/// them all.
Check sampler_check() {
  return Check(
      [](std::string& text) -> std::string {
        if (text.empty() || text.ends_with("Scheduler")) return "";
        text = spec::sampler_of_alias(text);
        if (spec::is_sampler_name(text)) return "";
        return one_of(spec::sampler_names())(text);
      },
      spec::sampler_names());
}

Check bounds_check(const wire::Bounds& typed, bool whole_number) {
  if (whole_number)
    return whole(static_cast<std::int64_t>(typed.least), static_cast<std::int64_t>(typed.most));
  return typed.above ? number_above(typed.least, typed.most) : number(typed.least, typed.most);
}

/// `Type`: of the wire's field. Of choices, `member` is the name.
template <class Type, class Member>
void add_field_option(Options& app, const wire::RequestField& field, Member& member,
                      const std::string& group) {
  static const std::map<std::string_view, const char*> kShort = {{"--height", "-H,"},
                                                                 {"--width", "-W,"}};
  static const std::set<std::string_view> kUsual = {"--n",     "--height",   "--width",
                                                    "--steps", "--guidance", "--sampler"};
  const auto shorter = kShort.find(field.option);
  const std::string name =
      (shorter == kShort.end() ? "" : shorter->second) + std::string(field.option);
  const std::string help(field.help);
  const std::string heading = kUsual.contains(field.option) ? kUsualOptions : group;
  using Value = wire::Given<Type>;
  if constexpr (std::is_same_v<Type, bool>) {
    app.add_flag(name, member, help)->group(heading);
  } else if constexpr (std::is_same_v<Type, std::vector<std::int32_t>> ||
                       std::is_same_v<Type, std::vector<double>>) {
    constexpr bool kWhole = !std::is_same_v<Type, std::vector<double>>;
    app.add_list_option(name, member, help, bounds_check(field.typed, kWhole))
        ->type_name(std::string(field.value))
        ->group(heading);
  } else if constexpr (!std::is_same_v<Type, std::vector<wire::Lora>> &&
                       !std::is_same_v<Type, std::vector<wire::Embedding>>) {
    auto* option =
        app.add_option(name, member, help)->type_name(std::string(field.value))->group(heading);
    if constexpr (std::is_same_v<Type, std::vector<std::string>>)
      option->allow_extra_args(false)->check(not_empty());
    if constexpr (std::is_same_v<Type, ComputeType>) {
      option->transform(compute_type_check());
    } else if constexpr (std::is_same_v<Type, WeightChoice>) {
      option->check(weight_check());
    } else if constexpr (Choice<Type>) {
      option->check(one_of(choice_words<Type>()));
    } else if constexpr (std::is_arithmetic_v<Value>) {
      option->check(bounds_check(field.typed, std::is_integral_v<Value>));
    }
    if constexpr (std::is_arithmetic_v<Type> || Choice<Type>)
      if (!field.default_in_help) option->capture_default_str();
    if (field.option == "--sampler") option->transform(sampler_check());
  }
}

}  // namespace

/// The options of this group that come from the table of a request's fields, in its order.
/// `heading`: of the help's part.
void add_field_options(Options& app, ImageRequest& request, wire::Group group,
                       const std::string& heading) {
#define REQUEST_FIELD(type, name, initial, ...)                                                   \
  if (const auto& field = wire::kRequestFields.name; !field.help.empty() && field.group == group) \
    add_field_option<decltype(wire::ImageRequest::name)>(app, field, request.name, heading);
#include "transport/wire/request_fields.def"
}

void add_request_options(Options& app, RequestOptions& options) {
  ImageRequest& request = options.request;
  const std::string group = "Picture";
  add_model_plugin_option(app);
  app.usual_help();
  options.model_option =
      app.add_option(
             "-m," + std::string(wire::kJobOptions.model), options.model,
             "Model folder in diffusers layout, or a name on the Hugging Face hub whose files "
             "its cache has: ORG/NAME[@REVISION], or a short one (`troupe models --known`)")
          ->type_name("DIR|NAME")
          ->group(kUsualOptions);
  app.add_option("-p," + std::string(wire::kJobOptions.prompt), request.prompts,
                 "What to show; repeat it for several pictures")
      ->type_name("TEXT")
      ->allow_extra_args(false)
      ->group(kUsualOptions);
  app.add_option("PROMPT", options.bare_words,
                 "The same as --prompt, in its place; with two, --model and --prompt");
  app.add_option(std::string(wire::kJobOptions.prompt_embeds), options.prompt_embeds_path,
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
  app.add_option(
         std::string(wire::kJobOptions.init_latents), options.init_latents_path,
         "Start from tensor \"latents\" [n, channels, rows, columns] of this file, not from "
         "the seed's noise")
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
         std::string(wire::kJobOptions.images), options.image_paths,
         "Picture to edit, or a video's first frame, where the model takes one; repeat it for "
         "several")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->type_name("FILE")
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.last_image), options.last_image_path,
                 "With --image: a video's last frame, where the model takes one")
      ->check(not_empty())
      ->type_name("FILE")
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.control_images), options.control_image_paths,
                 "Picture of edges, depth, a pose, …, that says where things stand: repeat it for "
                 "each ControlNet, the model's own ones first")
      ->allow_extra_args(false)
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
                 "Add a LoRA, LoHa, LoKr or DoRA (docs/lora.md); repeat it for several")
      ->allow_extra_args(false)
      ->check(not_empty())
      ->type_name("FILE[:SCALE]")
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.second_lora), options.second_loras,
                 "Add them to the second of a model's two transformers; --lora adds to the first")
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
  app.add_rivals({"PROMPT", "--prompt", "--prompt-embeds", "--negative-prompt"});
  app.add_rivals({"--steps", "--timesteps", "--sigmas", "--warmup", "--refill-steps"});
  app.add_rivals({"--init-image", "--init-latents", "--mask", "--strength", "--image"});
  app.add_rivals({"--image", "--last-image"});
  app.add_rivals(
      {"--control-image", "--controlnet", "--control-scale", "--control-from", "--control-until"});
  app.add_rivals(
      {"PROMPT", "--prompt", "--prompt-embeds", "--n", "--seed", "--negative-prompt", "--dp"});
}

namespace {

void add_degree(Options& app, const wire::DegreeField& field, int& degree,
                const std::string& heading) {
  app.add_option(std::string(field.option), degree, std::string(field.help))
      ->check(whole(1, field.most))
      ->type_name("N")
      ->capture_default_str()
      ->group(heading);
}

}  // namespace

void add_degree_options(Options& app, RequestOptions& options) {
  const std::string group =
      "Parallelism (--method, --patches, --warmup, --refill-steps, --kv, --step-cache, "
      "--step-cache-threshold, --group-norm and --exchange change the picture, the rest does not)";
  app.add_option(std::string(wire::kRequestFields.method.option), options.method,
                 "exact, pipefusion or distrifusion; default: pipefusion when --patches > 1")
      ->check(one_of(choice_words<Method>()))
      ->type_name("NAME")
      ->group(group);
  add_field_options(app, options.request, wire::Group::parallelism, group);
#define DEGREE_FIELD(name, option, most, help) \
  add_degree(app, wire::kDegreeFields.name, options.parallelism.name, group);
#include "transport/wire/degree_fields.def"
  app.add_list_option(std::string(wire::kJobOptions.stages), options.parallelism.stages,
                      "Blocks of each pipeline stage, as 7,7,7,7; default: split by cost",
                      whole(1, wire::kMaxDegree))
      ->type_name("LIST")
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.automatic), options.parallel,
                 "auto = pick the degrees for the actors at hand")
      ->check(one_of({"auto"}))
      ->type_name("auto")
      ->group(kUsualOptions);
  app.add_rivals({"--parallel", "--dp", "--cfg", "--pp", "--ulysses", "--ring", "--tp",
                  "--vae-parallel", "--stages", "--actors"});
  app.add_rivals({"--method", "--patches", "--warmup", "--kv", "--refill-steps", "--step-cache",
                  "--step-cache-threshold", "--group-norm", "--exchange"});
  app.add_rivals({"--cfg", "--guidance"});
}

void add_elastic_option(Options& app, RequestOptions& options) {
  app.add_flag(std::string(wire::kJobOptions.elastic), options.elastic,
               "Go on with fewer actors when lost ones do not come back: degrees are picked anew");
}

void add_queue_options(Options& app, RequestOptions& options) {
  const std::string group = "Queue";
  app.add_option(std::string(wire::kJobOptions.priority), options.priority,
                 fmt::format("Jobs of higher priority go first, {} to {}", -wire::kMaxPriority,
                             wire::kMaxPriority))
      ->check(whole(-wire::kMaxPriority, wire::kMaxPriority))
      ->type_name("N")
      ->capture_default_str()
      ->group(group);
  app.add_option(std::string(wire::kJobOptions.share), options.share,
                 "Whom the job counts for: shares get as much as each other; default: the client")
      ->check(
          Check([](std::string& text) -> std::string { return text.empty() ? "is empty" : ""; }))
      ->type_name("NAME")
      ->group(group);
  app.add_flag(std::string(wire::kJobOptions.may_batch), options.may_batch,
               "Compute as one batch with waiting jobs that allow it too and differ in prompts and "
               "seed only, not in what comes back (last bits may change)")
      ->group(group);
}

}  // namespace troupe::cli
