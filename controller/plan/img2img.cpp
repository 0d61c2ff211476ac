#include "controller/plan/img2img.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/format.h"
#include "base/numbers.h"
#include "controller/plan/refuse.h"
#include "models/samplers/schedule_checks.h"
#include "models/spec/scheduler_config.h"

namespace troupe::plan {
namespace {

void require_encoder(const spec::ModelSpec& model) {
  for (const auto& tensor : spec::expected_tensors(model.vae, spec::VaeHalf::encoder)) {
    const auto has = [&](const std::string& name) { return model.vae_weights.contains(name); };
    if (!has(tensor.name) && std::ranges::none_of(tensor.other_names, has)) {
      refuse(JobField::init_image,
             "init image is given, but " + model.vae_weights.label().string() +
                 " has no encoder: tensor \"" + tensor.name + "\" is missing");
    }
    try {
      spec::check_tensor(model.vae_weights, tensor);
    } catch (const std::runtime_error& error) {
      refuse(JobField::init_image, std::string("init image is given, but ") + error.what());
    }
  }
}

spec::PipelineTask task_of(const wire::ImageRequest& request) {
  if (request.mask_image_bytes > 0) return spec::PipelineTask::inpainting;
  return request.init_image_bytes > 0 ? spec::PipelineTask::from_picture
                                      : spec::PipelineTask::generation;
}

/// Interim content that is to come so many times comes at even intervals, before the last step.
void set_interval(wire::ImageRequest& request) {
  if (request.progress_count == 0 || request.progress_interval > 0) return;
  request.progress_interval = std::max(1, request.steps / (request.progress_count + 1));
}

spec::SamplerSettings settings_of(const wire::ImageRequest& request) {
  return {request.eta, request.timesteps, request.sigmas};
}

/// Returns the field whose list says a request's steps; none where no list does.
JobField list_of(const wire::ImageRequest& request) {
  if (!request.timesteps.empty()) return JobField::timesteps;
  return request.sigmas.empty() ? JobField::none : JobField::sigmas;
}

std::optional<int> given_steps(const spec::SchedulerConfig& config,
                               const wire::ImageRequest& request) {
  wire::about(JobField::eta, [&] { spec::given_steps(config, {request.eta, {}, {}}); });
  return wire::about(list_of(request),
                     [&] { return spec::given_steps(config, settings_of(request)); });
}

/// Leaves out the steps that an initial picture's strength says.
void set_skipped_steps(Plan& plan, const spec::ModelSpec& model) {
  if (model.makes_videos())
    refuse(JobField::init_image, "init image is given, but this model makes videos");
  require_encoder(model);
  const double strength = *plan.request.strength;
  const auto own = spec::scheduler_config_for(model.scheduler, "");
  const bool flow = own.kind == spec::SamplerKind::kFlowMatchEuler;
  plan.skipped_steps = skipped_steps(plan.sampler_steps, strength, flow);
  if (plan.skipped_steps >= plan.sampler_steps) {
    refuse(JobField::strength, fmt::format("strength is {}: of {} steps none is left",
                                           number_text(strength), plan.sampler_steps));
  }
}

}  // namespace

int skipped_steps(int steps, double strength, bool flow) {
  const double done = std::min(steps * strength, static_cast<double>(steps));
  return flow ? static_cast<int>(steps - done) : steps - static_cast<int>(done);
}

void set_defaults(wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto& own = model.defaults.of(task_of(request));
  if (request.steps == 0) request.steps = own.steps;
  if (!request.guidance_scale) request.guidance_scale = own.guidance_scale;
  if (!request.strength) request.strength = own.strength;
}

spec::SchedulerConfig sampler_config(const wire::ImageRequest& request,
                                     const spec::ModelSpec& model) {
  return wire::about(JobField::sampler, [&] {
    return spec::scheduler_config_for(model.scheduler, request.sampler, task_of(request));
  });
}

void set_calls(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  wire::about(JobField::sampler,
              [&] { spec::check_sampler_fits(model.scheduler, request.sampler); });
  const auto chosen = sampler_config(request, model);
  plan.sampler_steps = given_steps(chosen, request).value_or(request.steps);
  if (request.init_image_bytes > 0) set_skipped_steps(plan, model);
  const models::SamplerRun run{.num_steps = plan.sampler_steps,
                               .image_tokens = plan.token_rows * plan.token_columns,
                               .even_sigmas = model.even_sigmas,
                               .first = plan.skipped_steps,
                               .task = task_of(request),
                               .settings = settings_of(request)};
  const auto listed = list_of(request);
  request.steps = wire::about(listed == JobField::none ? JobField::steps : listed, [&] {
    spec::check_steps(chosen, run.num_steps, run.settings);
    return models::model_calls(chosen, run) - run.first;
  });
  set_interval(request);
}

void take_calls(Plan& plan, const Plan& same) {
  plan.sampler_steps = same.sampler_steps;
  plan.skipped_steps = same.skipped_steps;
  plan.request.steps = same.request.steps;
  plan.request.progress_interval = same.request.progress_interval;
}

void check_rescale(Plan& plan, const spec::ModelSpec& model) {
  if (plan.request.guidance_rescale == 0) return;
  if (!model.rescales_guidance) {
    refuse(JobField::guidance_rescale, "guidance rescale is " +
                                           number_text(plan.request.guidance_rescale) + ", but " +
                                           model.pipeline_class + " has none");
  }
  if (!model.has_branches(*plan.request.guidance_scale))
    plan.warnings.emplace_back("without guidance there is nothing to rescale");
}

}  // namespace troupe::plan
