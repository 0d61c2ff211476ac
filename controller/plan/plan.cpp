#include "controller/plan/plan.h"

#include <algorithm>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "controller/plan/block_cost.h"
#include "controller/plan/layout.h"
#include "controller/plan/memory.h"
#include "controller/plan/planner.h"
#include "controller/plan/request_defaults.h"
#include "controller/plan/request_rules.h"
#include "controller/plan/shape.h"
#include "controller/plan/staleness.h"
#include "models/spec/prompt_embeds.h"
#include "models/spec/scheduler_config.h"
#include "models/spec/transformer_spec.h"
#include "models/spec/weight_index.h"
#include "transport/wire/prompt_rows.h"
#include "transport/wire/request_fields.h"
#include "transport/wire/request_limits.h"

namespace troupe::plan {

namespace {

std::string rows_shared() {
  return std::string(wire::kDegreeFields.ulysses.option) + " or " +
         std::string(wire::kDegreeFields.ring.option) + " share its rows";
}

void check_unet(const Plan& plan) {
  const auto& request = plan.request;
  const auto& degrees = plan.degrees;
  if (degrees.pp > 1) {
    refuse(
        JobField::pp,
        fmt::format("`pp` is {}, but this model is a U-Net: its levels feed later ones across the "
                    "whole depth, so it is not split into stages; {}",
                    degrees.pp, rows_shared()));
  }
  if (degrees.tp > 1) {
    refuse(JobField::tp,
           fmt::format(
               "`tp` is {}, but this model is a U-Net, whose weights are not split over actors; {}",
               degrees.tp, rows_shared()));
  }
  if (request.offload != OffloadChoice::none) {
    refuse(
        JobField::offload,
        "`offload` is " + to_string(request.offload) +
            ", but this model is a U-Net, whose early levels feed its late ones: only transformers "
            "are read block by block");
  }
  if (request.method == Method::pipefusion) {
    refuse(JobField::method,
           "`method` is pipefusion, but this model is a U-Net, which has no stages: exact or "
           "distrifusion");
  }
  if (request.kv != KvUse::stale) {
    refuse(JobField::kv,
           "`kv` is " + to_string(request.kv) +
               ", but this model is a U-Net: what is not fresh is used as it is (stale)");
  }
  if (request.method != Method::distrifusion) return;
  const bool naive = request.exchange == PatchExchange::naive;
  if (request.num_pipeline_patch > 1 && request.warmup_steps < 1 && !naive)
    refuse(JobField::warmup_steps,
           "`warmup_steps` is 0, but a U-Net's patches use what their neighbours had in the step "
           "before: the "
           "first step is synchronous");
}

/// Refuses, by field and reason, what the model's kind of network cannot do: of a U-Net stages,
/// shards of the weights and K,V that are predicted, of a transformer modes of group norms and of
/// exchanges; and what does not go with naive patches.
void check_network(const Plan& plan, const spec::ModelSpec& model) {
  const bool naive = plan.request.exchange == PatchExchange::naive;
  if (naive && model.transformer.joint)
    refuse(JobField::exchange,
           "`exchange` is naive, but this transformer's text and picture attend to each other, and "
           "only the first patch computes the text");
  if (model.transformer.unet()) return check_unet(plan);
  if (plan.request.group_norm != GroupNormMoments::corrected)
    refuse(JobField::group_norm,
           "`group_norm` is " + to_string(plan.request.group_norm) +
               ", but this model is a transformer: it has no group norms over the picture");
  if (plan.request.exchange != PatchExchange::stale && !naive)
    refuse(JobField::exchange,
           "`exchange` is " + to_string(plan.request.exchange) +
               ", but this model is a transformer: only a U-Net's patches have that choice");
}

/// Fills in a U-Net's patches and the ranks that compute them: one micro-step a step, in which each
/// sequence rank has a run of patches; with method exact one patch each. Refuses more patches than
/// rows of latents, and fewer than ranks.
void set_unet_patches(Plan& plan) {
  auto& request = plan.request;
  const int ranks = plan.degrees.sp();
  const bool exact = request.method == Method::exact;
  const int patches = exact ? ranks : request.num_pipeline_patch;
  if (exact && ranks > plan.latent_height) {
    refuse(JobField::ulysses,
           fmt::format("`ulysses` × `ring` is {}, but the picture has only {} rows "
                       "of latents: each actor needs one",
                       ranks, plan.latent_height));
  }
  if (patches < ranks) {
    refuse(JobField::num_pipeline_patch, fmt::format("`num_pipeline_patch` is {}, but `ulysses` × "
                                                     "`ring` is {}: each of these actors needs a "
                                                     "patch of a U-Net",
                                                     patches, ranks));
  }
  plan.patches = split_rows(static_cast<int>(plan.latent_height), patches);
  wire::RowShares shares;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = patches_of(plan, rank);
    shares.of_rank.push_back({plan.patches[own.begin].begin, plan.patches[own.end - 1].end});
  }
  plan.micro_steps = {shares};
  const bool all = exact || patches == 1 || request.exchange == PatchExchange::all;
  plan.synchronous_steps = all ? request.steps : request.warmup_steps;
}

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
    plan.warnings.push_back("the negative prompt is unused: `guidance_scale` is " +
                            number_text(*request.guidance_scale) + ", and above " +
                            number_text(model.no_guidance()) + " is needed for it");
}

bool gives_negative(const wire::ImageRequest& request) {
  return request.negative_prompt || !request.negative_prompts.empty() ||
         std::ranges::any_of(request.prompt_embeds, [](const auto& tensor) {
           return tensor.name.starts_with(spec::kNegativeTensor);
         });
}

/// Takes guidance away where the model has it only with a negative prompt, and none is given.
void set_guidance(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  if (!model.guided_by_negative || gives_negative(request) ||
      !model.has_branches(*request.guidance_scale))
    return;
  plan.warnings.push_back("`guidance_scale` is " + number_text(*request.guidance_scale) + ", but " +
                          model.pipeline_class +
                          " guides only where a negative prompt is given, if only an empty one: "
                          "the picture is made without guidance");
  request.guidance_scale = model.no_guidance();
}

/// Warns of a scale that the request names itself, before anything is filled in.
void warn_of_scale(Plan& plan, const spec::ModelSpec& model) {
  if (model.transformer.guidance == spec::GuidanceKind::none &&
      plan.request.guidance_scale.value_or(0) > 1)
    plan.warnings.emplace_back(
        "this model was distilled without guidance: the scale changes nothing");
  const double first =
      plan.request.guidance_scale.value_or(model.defaults.generation.guidance_scale);
  if (plan.request.guidance_scale_2 && !model.has_branches(first))
    plan.warnings.push_back("`guidance_scale_2` changes nothing: `guidance_scale` is " +
                            number_text(first) + ", and above " + number_text(model.no_guidance()) +
                            " is needed for guidance in any step");
}

/// Refuses more text tokens than the model has positions for.
void check_text_tokens(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  auto most = model.transformer.most_text_tokens;
  // Text that comes encoded has the pictures' tokens with it.
  if (most > 0 && !request.prompt_embeds.empty())
    most += prompt_tokens(request, model) - request.max_sequence_length;
  if (most > 0 && request.max_sequence_length > most)
    refuse(JobField::max_sequence_length,
           fmt::format("`max_sequence_length` is {}: this model takes up to {}",
                       request.max_sequence_length, most));
}

void set_text(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  warn_of_negative(plan, model);
  if (!request.prompt_embeds.empty()) {
    plan.encodes_negative = wire::encodes_negative_alone(
        request, model.has_branches(*request.guidance_scale), model.zero_negative);
    set_prompt_embeds(request, model, plan.encodes_negative);
    return check_text_tokens(request, model);
  }
  if (request.max_sequence_length == 0)
    request.max_sequence_length = static_cast<std::int32_t>(model.text_tokens);
  const auto fixed = model.transformer.fixed_text_tokens;
  if (fixed > 0 && request.max_sequence_length != fixed) {
    refuse(JobField::max_sequence_length,
           fmt::format("`max_sequence_length` is {}: this model takes {} only",
                       request.max_sequence_length, fixed));
  }
  check_text_tokens(request, model);
  if (request.clean_caption && !model.pixart_customs)
    refuse(JobField::clean_caption,
           "`clean_caption` is on, but " + model.pipeline_class + " takes prompts as they are");
  warn_of_blank(plan);
}

void set_mesh(Plan& plan, const spec::ModelSpec& model, const wire::Parallelism& parallelism) {
  plan.degrees = degrees_of(parallelism);
  plan.guidance = model.has_branches(*plan.request.guidance_scale);
  if (plan.degrees.cfg == 2 && model.transformer.guidance != spec::GuidanceKind::branches) {
    refuse(JobField::cfg, std::string("`cfg` is 2, but this model ") +
                              (model.transformer.guidance == spec::GuidanceKind::embedded
                                   ? "takes the guidance scale as an input"
                                   : "was distilled without guidance") +
                              ": there is no second branch to compute");
  }
  if (plan.degrees.cfg == 2 && model.guided_by_negative && !gives_negative(plan.request))
    refuse(
        JobField::cfg,
        "`cfg` is 2, but no negative prompt is given: without one this model has no second branch");
  if (plan.degrees.cfg == 2 && !plan.guidance) {
    refuse(JobField::cfg,
           "`cfg` is 2, but `guidance_scale` is " + number_text(*plan.request.guidance_scale) +
               ": there is no second branch to compute unless `guidance_scale` is above " +
               number_text(model.no_guidance()));
  }
  const int pictures =
      static_cast<int>(plan.request.prompts.size()) * plan.request.images_per_prompt;
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
           "`stages` are given, but this model is a U-Net, which is not split into stages");
  const auto blocks = static_cast<int>(model.transformer.num_layers);
  const auto tokens = static_cast<double>(plan.token_rows * plan.token_columns);
  plan.stages =
      parallelism.stages.empty()
          ? split_blocks(block_costs(shape_of(model, plan.request), tokens, rates), plan.degrees.pp)
          : listed_stages(parallelism.stages, blocks);
  plan.vae_degree = parallelism.vae;
  if (plan.vae_degree > 1 && !plan.decodes() && plan.request.init_image_bytes == 0 &&
      model.inputs.beside == spec::BesideLatents::none && given_frames(plan.request, model) == 0) {
    refuse(JobField::vae,
           fmt::format("`vae` is {}, but with `output_type` latent nothing is decoded",
                       plan.vae_degree));
  }
  const auto rows = plan.latent_height / model.latent_frames(plan.request.num_frames);
  if (plan.vae_degree > rows) {
    refuse(JobField::vae, fmt::format("`vae` is {}, but the latents have only {} to split",
                                      plan.vae_degree, counted(rows, "row")));
  }
}

void set_shares(Plan& plan) {
  const auto layout =
      layout_of(plan.request.method, plan.patches, plan.degrees.ring, plan.degrees.ulysses);
  for (const auto& shares : layout.shares)
    plan.micro_steps.push_back({shares});
}

/// Refuses refill steps beyond the last of those that are computed.
void check_refill_steps(const wire::ImageRequest& request) {
  for (const int step : request.refill_steps) {
    if (step >= request.steps)
      refuse(JobField::refill_steps,
             fmt::format("`refill_steps` have {}, but of {} the last is {}", step,
                         counted(request.steps, "step"), request.steps - 1));
  }
}

void check_warmup(const wire::ImageRequest& request) {
  if (request.warmup_steps <= request.steps) return;
  refuse(
      JobField::warmup_steps,
      fmt::format("`warmup_steps` is {}, but there {}{}", request.warmup_steps,
                  request.steps == 1 ? "is only " : "are only ", counted(request.steps, "step")));
}

void check_offload(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto* user = std::get_if<spec::UserSpec>(&model.transformer.family);
  if (request.offload == OffloadChoice::none || user == nullptr) return;
  refuse(JobField::offload, "`offload` is " + to_string(request.offload) +
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
    refuse(JobField::num_pipeline_patch,
           fmt::format("`num_pipeline_patch` is {}, but the sampler's thresholding needs "
                       "statistics of the whole picture",
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

/// Holds the latents that a job begins with against those that it computes.
void check_init_latents(const Plan& plan) {
  const auto& request = plan.request;
  if (request.init_latents_blob == 0) return;
  const std::vector<std::int64_t> shape = {plan.picture_count(), plan.latent_channels,
                                           plan.latent_height, plan.latent_width};
  if (request.init_latents_shape != shape)
    refuse(JobField::init_latents,
           fmt::format("`init_latents` have shape {}, but [pictures, channels, rows, columns] of "
                       "this request are {}",
                       spec::shape_text(request.init_latents_shape), spec::shape_text(shape)));
  const auto bytes = static_cast<std::uint64_t>(shape[0] * shape[1] * shape[2] * shape[3] * 4);
  if (request.init_latents_bytes != bytes)
    refuse(JobField::init_latents,
           fmt::format("`init_latents` have {} bytes, but {} in float32 needs {}",
                       request.init_latents_bytes, spec::shape_text(shape), bytes));
}

Plan planned(const spec::ModelSpec& model, const wire::ImageRequest& request,
             const wire::Parallelism& parallelism, const Machine& machine, const Plan* same) {
  check(request, parallelism);
  check_inputs(request, model);
  Plan plan;
  plan.request = request;
  set_per_image_settings(plan.request);
  warn_of_scale(plan, model);
  set_defaults(plan.request, model);
  set_guidance(plan, model);
  set_text(plan, model);
  set_size(plan, model);
  if (same)
    take_calls(plan, *same);
  else
    set_calls(plan, model);
  warn_of_size(plan, model);
  warn_of_controls(plan, model);
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
  check_init_latents(plan);
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
