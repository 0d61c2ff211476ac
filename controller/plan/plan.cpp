#include "controller/plan/plan.h"

#include <algorithm>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "controller/plan/degrees.h"
#include "controller/plan/encoders.h"
#include "controller/plan/groups.h"
#include "controller/plan/img2img.h"
#include "controller/plan/layout.h"
#include "controller/plan/memory.h"
#include "controller/plan/part_sizes.h"
#include "controller/plan/patches.h"
#include "controller/plan/per_image_settings.h"
#include "controller/plan/picture_size.h"
#include "controller/plan/planner.h"
#include "controller/plan/prompt_embeds.h"
#include "controller/plan/refuse.h"
#include "controller/plan/request_check.h"
#include "controller/plan/shape.h"
#include "controller/plan/staleness.h"
#include "controller/plan/unet_plan.h"
#include "models/spec/scheduler_config.h"
#include "models/spec/transformer_spec.h"
#include "transport/wire/prompt_rows.h"
#include "transport/wire/request_limits.h"

namespace troupe::plan {
namespace {

using wire::kMaxActors;

/// Warns of a prompt that is empty: it is painted, too.
void warn_of_blank(Plan& plan) {
  const auto& prompts = plan.request.prompts;
  const auto is_blank = [](const std::string& text) {
    return text.find_first_not_of(" \t\r\n") == std::string::npos;
  };
  if (const auto blank = std::ranges::find_if(prompts, is_blank); blank != prompts.end()) {
    plan.warnings.push_back(
        (prompts.size() == 1
             ? "the prompt"
             : fmt::format("prompt {} of {}", blank - prompts.begin() + 1, prompts.size())) +
        " is empty: nothing says what to show");
  }
}

void warn_of_negative(Plan& plan, const spec::ModelSpec& model) {
  const auto& request = plan.request;
  if (request.negative_prompt.value_or("").empty() && request.negative_prompts.empty()) return;
  if (model.transformer.guidance != spec::GuidanceKind::branches)
    plan.warnings.emplace_back(
        "this model computes no negative branch: the negative prompt is unused");
  else if (!model.has_branches(*request.guidance_scale))
    plan.warnings.push_back("the negative prompt is unused: guidance is " +
                            number_text(*request.guidance_scale) +
                            ", and above 1 is needed for it");
}

/// Warns of a scale that the request names itself, before anything is filled in.
void warn_of_scale(Plan& plan, const spec::ModelSpec& model) {
  if (model.transformer.guidance == spec::GuidanceKind::none &&
      plan.request.guidance_scale.value_or(0) > 1)
    plan.warnings.emplace_back(
        "this model was distilled without guidance: the scale changes nothing");
}

void set_text(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  warn_of_negative(plan, model);
  if (!request.prompt_embeds.empty()) {
    plan.encodes_negative = wire::encodes_negative_alone(
        request, model.has_branches(*request.guidance_scale), model.zero_negative);
    return set_prompt_embeds(request, model, plan.encodes_negative);
  }
  if (request.max_sequence_length == 0)
    request.max_sequence_length = static_cast<std::int32_t>(model.text_tokens);
  const auto fixed = model.transformer.fixed_text_tokens;
  if (fixed > 0 && request.max_sequence_length != fixed) {
    refuse(JobField::max_sequence_length,
           fmt::format("max sequence length is {}: this model takes {} only",
                       request.max_sequence_length, fixed));
  }
  if (request.clean_caption && !model.pixart_customs)
    refuse(JobField::clean_caption,
           "clean_caption is on, but " + model.pipeline_class + " takes prompts as they are");
  warn_of_blank(plan);
}

/// Refuses degrees that are too large, before anything of that size is made.
void check_degrees(const mesh::Degrees& degrees) {
  std::int64_t world = 1;
  for (const auto& [name, degree] :
       {std::pair{JobField::dp, degrees.dp}, std::pair{JobField::cfg, degrees.cfg},
        std::pair{JobField::pp, degrees.pp}, std::pair{JobField::ring, degrees.ring},
        std::pair{JobField::ulysses, degrees.ulysses}, std::pair{JobField::tp, degrees.tp}}) {
    if (degree < 1) wire::about(name, [&] { mesh::Mesh{degrees}; });
    if (degree > kMaxActors || (world *= degree) > kMaxActors) {
      refuse(name,
             fmt::format("{} is {}: dp × cfg × pp × ring × ulysses × tp may be at most {} actors",
                         to_string(name), degree, kMaxActors));
    }
  }
  wire::about(JobField::cfg, [&] { mesh::Mesh{degrees}; });
}

void set_mesh(Plan& plan, const spec::ModelSpec& model, const wire::Parallelism& parallelism) {
  plan.degrees = degrees_of(parallelism);
  check_degrees(plan.degrees);
  plan.guidance = model.has_branches(*plan.request.guidance_scale);
  if (plan.degrees.cfg == 2 && model.transformer.guidance != spec::GuidanceKind::branches) {
    refuse(JobField::cfg, std::string("cfg is 2, but this model ") +
                              (model.transformer.guidance == spec::GuidanceKind::embedded
                                   ? "takes the guidance scale as an input"
                                   : "was distilled without guidance") +
                              ": there is no second branch to compute");
  }
  if (plan.degrees.cfg == 2 && !plan.guidance) {
    refuse(JobField::cfg, "cfg is 2, but guidance is " + number_text(*plan.request.guidance_scale) +
                              ": there is no second branch to compute unless guidance is above 1");
  }
  const int pictures =
      static_cast<int>(plan.request.prompts.size()) * plan.request.images_per_prompt;
  if (plan.degrees.dp > pictures) {
    refuse(JobField::dp,
           fmt::format("dp is {}, but there {}{} to split (prompts × n)", plan.degrees.dp,
                       pictures == 1 ? "is only " : "are only ", counted(pictures, "picture")));
  }
  plan.images = split_evenly(pictures, plan.degrees.dp);
}

void set_parts(Plan& plan, const spec::ModelSpec& model, const Machine& machine) {
  const auto most = part_sizes(plan, model, machine);
  for (const auto& images : plan.images) {
    const int pictures = images.end - images.begin;
    plan.batch_parts.push_back(
        batch_parts(pictures * plan.branches_per_actor(), plan.degrees.pp, most.items));
    plan.decode_parts.push_back(
        split_evenly(pictures, (pictures + most.pictures - 1) / most.pictures));
  }
}

void set_stages(Plan& plan, const spec::ModelSpec& model, const wire::Parallelism& parallelism,
                const WorkRates& rates) {
  if (model.transformer.unet() && !parallelism.stages.empty())
    refuse(JobField::stages,
           "stages are given, but this model is a U-Net, which is not split into stages");
  const auto blocks = static_cast<int>(model.transformer.num_layers);
  const auto tokens = static_cast<double>(plan.token_rows * plan.token_columns);
  plan.stages =
      parallelism.stages.empty()
          ? split_blocks(block_costs(shape_of(model, plan.request), tokens, rates), plan.degrees.pp)
          : listed_stages(parallelism.stages, plan.degrees.pp, blocks);
  plan.vae_degree = parallelism.vae;
  const int replica = plan.degrees.world() / plan.degrees.dp;
  if (plan.vae_degree < 1 || plan.vae_degree > replica) {
    refuse(JobField::vae, fmt::format("vae-parallel is {}, but a replica of this mesh has {}",
                                      plan.vae_degree, counted(replica, "actor")));
  }
  if (plan.vae_degree > 1 && !plan.decodes() && plan.request.init_image_bytes == 0) {
    refuse(JobField::vae,
           fmt::format("vae-parallel is {}, but with output type latent nothing is decoded",
                       plan.vae_degree));
  }
  const auto rows = plan.latent_height / model.latent_frames(plan.request.num_frames);
  if (plan.vae_degree > rows) {
    refuse(JobField::vae, fmt::format("vae-parallel is {}, but the latents have only {} to split",
                                      plan.vae_degree, counted(rows, "row")));
  }
}

void set_shares(Plan& plan) {
  const auto layout =
      layout_of(plan.request.method, plan.patches, plan.degrees.ring, plan.degrees.ulysses);
  for (const auto& shares : layout.shares)
    plan.micro_steps.push_back({shares});
}

void check_refill_steps(const wire::ImageRequest& request) {
  int before = request.warmup_steps - 1;
  for (const int step : request.refill_steps) {
    if (request.method == Method::exact && request.step_cache == StepCacheRule::none)
      refuse(
          JobField::refill_steps,
          "refill steps need method pipefusion or distrifusion, or a step cache: else exact keeps "
          "nothing from step to step");
    if (step <= before || step >= request.steps) {
      refuse(JobField::refill_steps,
             fmt::format("refill step {} is out of place: after the warm-up, before the last of {} "
                         "steps has ended, in order, each once",
                         step, request.steps));
    }
    before = step;
  }
}

void check_warmup(const wire::ImageRequest& request) {
  if (request.warmup_steps <= request.steps) return;
  refuse(JobField::warmup_steps, fmt::format("warmup is {}, but there {}{}", request.warmup_steps,
                                             request.steps == 1 ? "is only " : "are only ",
                                             counted(request.steps, "step")));
}

void check_offload(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto* user = std::get_if<spec::UserSpec>(&model.transformer.family);
  if (request.offload == OffloadChoice::none || user == nullptr) return;
  refuse(JobField::offload, "offload is " + to_string(request.offload) +
                                ", but a plugin computes " + user->class_name +
                                ": only Troupe's own transformers are read block by block");
}

void set_step_cache(wire::ImageRequest& request) {
  if (request.step_cache == StepCacheRule::none) return;
  if (request.step_cache_threshold == 0)
    request.step_cache_threshold = spec::default_cache_threshold(request.step_cache);
}

void set_patches(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  if (request.method == Method::exact) request.warmup_steps = 0;
  if (request.exchange == PatchExchange::naive) {
    request.warmup_steps = 0;
    request.group_norm =
        model.transformer.unet() ? GroupNormMoments::separate : GroupNormMoments::corrected;
  }
  check_refill_steps(request);
  if (model.transformer.unet()) {
    check_warmup(request);
    return set_unet_patches(plan);
  }
  if (request.method == Method::exact) {
    plan.patches = split_rows(static_cast<int>(plan.token_rows), 1);
    set_shares(plan);
    plan.synchronous_steps = request.steps;
    return;
  }
  plan.patches = split_rows(static_cast<int>(plan.token_rows), request.num_pipeline_patch);
  set_shares(plan);
  plan.synchronous_steps = std::min(request.warmup_steps, request.steps);
  check_warmup(request);
  if (plan.degrees.pp > 1 && request.num_pipeline_patch < plan.degrees.pp) {
    plan.warnings.push_back(
        fmt::format("patches ({}) are fewer than pp ({}): some stages will idle",
                    request.num_pipeline_patch, plan.degrees.pp));
  }
}

/// Holds the sampler's configuration against the patches, and warns where it clips latents.
void check_sampler(Plan& plan, const spec::ModelSpec& model) {
  const auto config = sampler_config(plan.request, model);
  if (config.thresholding && plan.patches.size() > 1) {
    refuse(
        JobField::num_pipeline_patch,
        fmt::format(
            "patches are {}, but the sampler's thresholding needs statistics of the whole picture",
            plan.patches.size()));
  }
  const bool clips =
      config.kind == spec::SamplerKind::kDdim || config.kind == spec::SamplerKind::kDdpm;
  if (clips && config.clip_sample && !plan.request.sampler.empty()) {
    plan.warnings.push_back(
        plan.request.sampler + " clips latents to ±" + number_text(config.clip_sample_range) +
        ", as diffusers' does unless clip_sample in scheduler_config.json is false: that spoils "
        "most latent models' pictures");
  }
}

Plan planned(const spec::ModelSpec& model, const wire::ImageRequest& request,
             const wire::Parallelism& parallelism, const Machine& machine, const Plan* same) {
  check_request(request);
  Plan plan;
  plan.request = request;
  set_per_image_settings(plan.request);
  warn_of_scale(plan, model);
  set_defaults(plan.request, model);
  set_text(plan, model);
  set_size(plan, model);
  if (same)
    take_calls(plan, *same);
  else
    set_calls(plan, model);
  warn_of_size(plan, model);
  check_rescale(plan, model);
  set_mesh(plan, model, parallelism);
  check_network(plan, model);
  set_stages(plan, model, parallelism, rates_of(machine, request.dtype));
  check_offload(plan.request, model);
  set_step_cache(plan.request);
  set_patches(plan, model);
  set_parts(plan, model, machine);
  check_sampler(plan, model);
  plan.encoder_places = encoder_places(shape_of(model, plan.request).text_encoder_flops,
                                       plan.degrees.world() / plan.degrees.dp);
  warn_of_staleness(plan);
  set_groups(plan, model);
  plan.warnings.insert(plan.warnings.end(), model.notes.begin(), model.notes.end());
  if (request.init_latents_blob != 0) {
    const auto bytes = static_cast<std::uint64_t>(plan.picture_count() * plan.latent_channels *
                                                  plan.latent_height * plan.latent_width * 4);
    if (request.init_latents_bytes != bytes) {
      refuse(JobField::init_latents,
             fmt::format("init latents have {} bytes, but [{}, {}, {}, {}] float32 needs {}",
                         request.init_latents_bytes, plan.picture_count(), plan.latent_channels,
                         plan.latent_height, plan.latent_width, bytes));
    }
  }
  plan.memory = estimate_memory(plan, model);
  return plan;
}

}  // namespace

Plan make_plan(const spec::ModelSpec& model, const wire::ImageRequest& request,
               const wire::Parallelism& parallelism) {
  return planned(model, request, parallelism, Machine{}, nullptr);
}

Plan make_plan(const spec::ModelSpec& model, const wire::ImageRequest& request,
               const wire::Parallelism& parallelism, const Machine& machine, const Plan* same) {
  return planned(model, request, parallelism, machine, same);
}

std::vector<wire::RowRange> rows_of_rank(const Plan& plan, int sequence_rank) {
  std::vector<wire::RowRange> rows;
  for (const auto& shares : plan.micro_steps) {
    const auto& own = shares.of_rank.at(sequence_rank);
    if (own.begin < own.end) rows.push_back(own);
  }
  return rows;
}

}  // namespace troupe::plan
