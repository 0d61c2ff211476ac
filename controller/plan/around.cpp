#include "controller/plan/around.h"

#include <algorithm>
#include <string>

#include "base/format.h"
#include "base/number_text.h"
#include "controller/plan/refuse.h"
#include "models/spec/scheduler_config.h"

namespace troupe::plan {
namespace {

void require_encoder(const spec::ModelSpec& model) {
  for (const auto& tensor : spec::expected_tensors(model.vae, spec::VaeHalf::encoder)) {
    const auto has = [&](const std::string& name) { return model.vae_weights.contains(name); };
    if (has(tensor.name) || std::ranges::any_of(tensor.other_names, has)) continue;
    refuse("init image is given, but " + model.vae_weights.label().string() +
           " has no encoder: tensor \"" + tensor.name + "\" is missing");
  }
}

}  // namespace

int skipped_steps(int steps, double strength, bool flow) {
  const double done = std::min(steps * strength, static_cast<double>(steps));
  return flow ? static_cast<int>(steps - done) : steps - static_cast<int>(done);
}

spec::SchedulerConfig sampler_config(const wire::ImageRequest& request,
                                     const spec::ModelSpec& model) {
  const auto task = request.mask_image_bytes > 0 ? spec::PipelineTask::inpainting
                                                 : spec::PipelineTask::generation;
  return spec::scheduler_config_for(model.scheduler, request.sampler, task);
}

void set_calls(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  const auto chosen = sampler_config(request, model);
  plan.sampler_steps = spec::given_steps(chosen, {request.eta, request.timesteps, request.sigmas})
                           .value_or(request.steps);
  request.steps = spec::model_calls(chosen, plan.sampler_steps);
  if (request.steps == 0) {
    refuse(
        fmt::format("steps is {}, but PNDM begins with rounds over four of them (skip_prk_steps is "
                    "not true in {}): ask for 4 or more",
                    plan.sampler_steps, chosen.file));
  }
  if (request.init_image_bytes == 0) return;
  if (model.makes_videos()) refuse("init image is given, but this model makes videos");
  require_encoder(model);
  const auto own = spec::scheduler_config_for(model.scheduler, "");
  const bool flow = own.kind == spec::SamplerKind::kFlowMatchEuler;
  plan.skipped_steps = skipped_steps(plan.sampler_steps, request.strength, flow);
  if (plan.skipped_steps >= plan.sampler_steps) {
    refuse(fmt::format("strength is {}: of {} steps none is left", number_text(request.strength),
                       plan.sampler_steps));
  }
  request.steps -= plan.skipped_steps;
}

void check_rescale(Plan& plan, const spec::ModelSpec& model) {
  if (plan.request.guidance_rescale == 0) return;
  if (!model.rescales_guidance) {
    refuse("guidance rescale is " + number_text(plan.request.guidance_rescale) + ", but " +
           model.pipeline_class + " has none");
  }
  if (!model.has_branches(plan.request.guidance_scale))
    plan.warnings.emplace_back("without guidance there is nothing to rescale");
}

}  // namespace troupe::plan
