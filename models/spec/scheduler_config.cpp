#include "models/spec/scheduler_config.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "base/format.h"
#include "base/numbers.h"
#include "models/spec/config.h"
#include "models/spec/json_text.h"
#include "models/spec/model_plugin.h"
#include "models/spec/model_spec.h"
#include "models/spec/sampler_alias.h"
#include "models/spec/scheduler_readers.h"

namespace troupe::spec {
namespace {

// Keys of the schedulers that diffusers takes to be interchangeable with ours. A file may hold any
// of them; a scheduler drops those that it does not know.
void drop_keys_of_other_schedulers(const ConfigReader& in) {
  in.harmless({"algorithm_type",
               "base_image_seq_len",
               "base_shift",
               "clip_sample",
               "clip_sample_range",
               "disable_corrector",
               "dynamic_thresholding_ratio",
               "euler_at_final",
               "final_sigmas_type",
               "flow_shift",
               "interpolation_type",
               "invert_sigmas",
               "lambda_min_clipped",
               "lower_order_final",
               "max_image_seq_len",
               "max_shift",
               "original_inference_steps",
               "predict_x0",
               "rho",
               "sample_max_value",
               "set_alpha_to_one",
               "shift",
               "shift_terminal",
               "sigma_data",
               "sigma_max",
               "sigma_min",
               "sigma_schedule",
               "skip_prk_steps",
               "solver_order",
               "solver_p",
               "solver_type",
               "stochastic_sampling",
               "thresholding",
               "time_shift_type",
               "timestep_scaling",
               "timestep_type",
               "use_beta_sigmas",
               "use_dynamic_shifting",
               "use_exponential_sigmas",
               "use_flow_sigmas",
               "use_karras_sigmas",
               "use_lu_lambdas",
               "variance_type"});
}

}  // namespace

SchedulerConfig parse_scheduler_config(const std::string& json_text, const std::string& file,
                                       SamplerKind kind) {
  const ConfigReader in(json_text, file);
  SchedulerConfig c;
  c.kind = kind;
  c.file = file;
  if (kind != SamplerKind::kFlowMatchEuler) read_common(in, c);
  if (c.prediction_type == PredictionType::kFlow && kind != SamplerKind::kDpmSolverMultistep &&
      kind != SamplerKind::kUniPc && kind != SamplerKind::kFlowMatchEuler) {
    in.refuse("prediction_type", "is not supported by this sampler");
  }
  switch (kind) {
    case SamplerKind::kDpmSolverMultistep:
      read_dpm(in, c);
      break;
    case SamplerKind::kDdim:
      read_ddim(in, c);
      break;
    case SamplerKind::kEulerDiscrete:
      read_euler(in, c);
      break;
    case SamplerKind::kDdpm:
      read_ddpm(in, c);
      break;
    case SamplerKind::kEulerAncestral:
      read_euler_ancestral(in, c);
      break;
    case SamplerKind::kUniPc:
      read_unipc(in, c);
      break;
    case SamplerKind::kFlowMatchEuler:
      read_flow_match(in, c);
      break;
    case SamplerKind::kLcm:
      read_lcm(in, c);
      break;
    case SamplerKind::kPndm:
      read_pndm(in, c);
      break;
    case SamplerKind::kUser:
      throw std::logic_error("[sampler] a plugin's sampler reads its configuration itself");
  }
  drop_keys_of_other_schedulers(in);
  in.finish();
  return c;
}

namespace {

struct KnownSampler {
  const char* name;
  const char* class_name;
  SamplerKind kind;
};
constexpr KnownSampler kKnownSamplers[] = {
    {"dpmsolver++", "DPMSolverMultistepScheduler", SamplerKind::kDpmSolverMultistep},
    {"ddim", "DDIMScheduler", SamplerKind::kDdim},
    {"euler", "EulerDiscreteScheduler", SamplerKind::kEulerDiscrete},
    {"euler-ancestral", "EulerAncestralDiscreteScheduler", SamplerKind::kEulerAncestral},
    {"ddpm", "DDPMScheduler", SamplerKind::kDdpm},
    {"unipc", "UniPCMultistepScheduler", SamplerKind::kUniPc},
    {"lcm", "LCMScheduler", SamplerKind::kLcm},
    {"pndm", "PNDMScheduler", SamplerKind::kPndm},
    {"flow-euler", "FlowMatchEulerDiscreteScheduler", SamplerKind::kFlowMatchEuler},
    {"sde-dpmsolver++", "DPMSolverMultistepScheduler", SamplerKind::kDpmSolverMultistep},
};

[[noreturn]] void refuse_misfit(const SchedulerSpec& spec, const std::string& name, bool flow) {
  throw std::invalid_argument(
      "[sampler] sampler is \"" + name + "\", which is made for models that predict " +
      (flow ? "a flow" : "noise") + "; this one, by its " + spec.class_name + ", predicts " +
      (flow ? "noise: choose another" : "a flow: choose flow-euler"));
}

/// The checkpoint's settings after its pipeline put outdated ones right. In a sampler that is not
/// the checkpoint's own, a key that the file leaves out has that sampler's default.
std::string mended_settings(const SchedulerSpec& spec, bool own, PipelineTask task) {
  if (!spec.mends_old_settings) return spec.config;
  auto settings = parse_json(spec.config, spec.file);
  const auto mend = [&](const char* key, const nlohmann::json& right, const auto& is_outdated) {
    const auto found = settings.find(key);
    if (found == settings.end() ? own : is_outdated(*found)) settings[key] = right;
  };
  mend("steps_offset", 1, [](const auto& value) { return value != 1; });
  if (task == PipelineTask::inpainting) {
    mend("skip_prk_steps", true, [](const auto& value) { return value == false; });
  } else {
    mend("clip_sample", false, [](const auto& value) { return value == true; });
  }
  return settings.dump();
}

/// Takes over the checkpoint's keys for a sampler that is not its own. A key that this sampler
/// refuses is the choice's fault, not the file's.
SchedulerConfig taken_over(const SchedulerSpec& spec, const KnownSampler& chosen,
                           const std::string& name, PipelineTask task) {
  try {
    return parse_scheduler_config(mended_settings(spec, false, task), spec.file.string(),
                                  chosen.kind);
  } catch (const std::runtime_error& error) {
    // Keys that only a flow's own scheduler has.
    if (spec.class_name == "FlowMatchEulerDiscreteScheduler") refuse_misfit(spec, name, false);
    throw std::invalid_argument("[sampler] sampler is \"" + name +
                                "\", which cannot take over this checkpoint's " + spec.class_name +
                                ": " + error.what());
  }
}

std::string known_samplers_text() {
  std::string out;
  for (const auto& known : kKnownSamplers) {
    out += (out.empty() ? "" : ", ") + std::string(known.name) + " (" + known.class_name + ")";
  }
  for (const auto& name : user_models().sampler_names())
    out += ", " + name;
  return out;
}

/// Returns the configuration of a plugin's sampler. The plugin reads the file itself, except for
/// the number of training steps.
SchedulerConfig user_config(const SchedulerSpec& spec, const UserSampler& sampler) {
  const ConfigReader in(spec.config, spec.file);
  SchedulerConfig config;
  config.kind = SamplerKind::kUser;
  config.file = spec.file.string();
  config.num_train_timesteps = static_cast<int>(
      in.integer_or("num_train_timesteps", config.num_train_timesteps, 1, 1 << 20));
  config.user_name = sampler.name;
  config.user_config = spec.config;
  config.user_flow = sampler.flow;
  if (sampler.check) sampler.check(in);
  return config;
}

}  // namespace

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const auto& known : kKnownSamplers)
    names.emplace_back(known.name);
  for (auto& name : user_models().sampler_names())
    names.push_back(std::move(name));
  return names;
}

bool is_own_sampler(const std::string& name) {
  return std::ranges::any_of(kKnownSamplers, [&](const KnownSampler& known) {
    return name == known.name || name == known.class_name;
  });
}

std::string sampler_name(const SchedulerSpec& spec, const std::string& name) {
  const SchedulerConfig config = scheduler_config_for(spec, name);
  if (named_sampler(name).levels) return name;
  if (config.kind == SamplerKind::kUser) return config.user_name;
  const auto known = std::ranges::find(kKnownSamplers, config.kind, &KnownSampler::kind);
  if (config.kind == SamplerKind::kDpmSolverMultistep) {
    if (!config.plus_plus) return "dpmsolver";
    if (config.stochastic) return "sde-dpmsolver++";
  }
  return known->name;
}

SchedulerConfig scheduler_config_for(const SchedulerSpec& spec, const std::string& name,
                                     PipelineTask task) {
  const auto [asked, levels] = named_sampler(name);
  const std::string& wanted = name.empty() ? spec.class_name : asked;
  if (const auto* sampler = user_models().sampler_of(wanted)) return user_config(spec, *sampler);
  const KnownSampler* found = nullptr;
  for (const auto& known : kKnownSamplers) {
    if (!found && (wanted == known.name || wanted == known.class_name)) found = &known;
  }
  if (!found && name.empty()) {
    throw std::runtime_error(
        "[sampler] " + spec.file.string() + ": _class_name = \"" + wanted +
        "\" is not supported; choose another sampler: " + known_samplers_text());
  }
  if (!found) {
    throw std::invalid_argument("[sampler] sampler is \"" + wanted +
                                "\", which is unknown: choose " + known_samplers_text());
  }
  SchedulerConfig config = found->class_name == spec.class_name
                               ? parse_scheduler_config(mended_settings(spec, true, task),
                                                        spec.file.string(), found->kind)
                               : taken_over(spec, *found, wanted, task);
  if (levels) {
    if (config.sigma_spacing == SigmaSpacing::kFlow) refuse_misfit(spec, name, false);
    config.sigma_spacing = *levels;
  }
  if (wanted == "dpmsolver++" || wanted == "sde-dpmsolver++") {
    config.plus_plus = true;
    config.stochastic = wanted == "sde-dpmsolver++";
  }
  return config;
}

namespace {

[[noreturn]] void refuse_setting(const std::string& what) {
  throw std::invalid_argument("[sampler] " + what);
}

/// Returns the sampler's name for messages.
std::string_view short_name(SamplerKind kind) {
  for (const KnownSampler& sampler : kKnownSamplers) {
    if (sampler.kind == kind) return sampler.name;
  }
  return "this sampler";
}

void require_falling(const std::string& what, const std::vector<double>& values, double least,
                     double most) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] >= least && values[i] <= most)) {
      refuse_setting(what + " have " + number_text(values[i]) + ": numbers from " +
                     number_text(least) + " to " + number_text(most) + " are needed");
    }
    if (i > 0 && !(values[i] < values[i - 1])) {
      refuse_setting(what + " have " + number_text(values[i]) + " after " +
                     number_text(values[i - 1]) + ": they must fall");
    }
  }
}

bool takes_timesteps(SamplerKind kind) {
  return kind == SamplerKind::kDdpm || kind == SamplerKind::kLcm ||
         kind == SamplerKind::kDpmSolverMultistep || kind == SamplerKind::kEulerDiscrete;
}

int steps_of_timesteps(const SchedulerConfig& config, const std::vector<double>& timesteps) {
  const std::string sampler(short_name(config.kind));
  if (!takes_timesteps(config.kind))
    refuse_setting("timesteps are given, but " + sampler + " goes through its own alone");
  const bool continuous = config.kind == SamplerKind::kEulerDiscrete &&
                          config.continuous_timesteps &&
                          config.prediction_type == PredictionType::kVPrediction;
  if (config.sigma_spacing != SigmaSpacing::kSchedule || continuous) {
    refuse_setting("timesteps are given, but " + sampler + " of " + config.file +
                   " spaces noise levels, not timesteps");
  }
  require_falling("timesteps", timesteps, 0, config.num_train_timesteps - 1);
  for (const double time : timesteps) {
    if (config.kind != SamplerKind::kEulerDiscrete && time != std::floor(time))
      refuse_setting("timesteps have " + number_text(time) + ": " + sampler +
                     " takes whole numbers");
  }
  return static_cast<int>(timesteps.size());
}

int steps_of_sigmas(const SchedulerConfig& config, const std::vector<double>& sigmas) {
  switch (config.kind) {
    case SamplerKind::kFlowMatchEuler:
      require_falling("sigmas", sigmas, 1e-6, 1);
      return static_cast<int>(sigmas.size());
    case SamplerKind::kEulerDiscrete:
      require_falling("sigmas", sigmas, 0, 1e6);
      if (sigmas.size() < 2)
        refuse_setting("sigmas are one: euler needs the one that it ends with, too");
      return static_cast<int>(sigmas.size()) - 1;
    default:
      refuse_setting("sigmas are given, but " + std::string(short_name(config.kind)) +
                     " takes none: euler and flow-euler do");
  }
}

bool follows_flow(const SchedulerConfig& config) {
  return config.kind == SamplerKind::kFlowMatchEuler || config.user_flow ||
         config.prediction_type == PredictionType::kFlow ||
         config.sigma_spacing == SigmaSpacing::kFlow;
}

}  // namespace

void check_steps(const SchedulerConfig& config, int steps, const SamplerSettings& settings) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(fmt::format("[sampler] steps is {}: {}", steps, why));
  };
  const int trained = config.num_train_timesteps;
  if (steps < 1 || steps > trained)
    refuse(fmt::format("the model was trained with {} timesteps", trained));
  if (!settings.timesteps.empty() || !settings.sigmas.empty()) return;
  const bool leading = config.timestep_spacing == TimestepSpacing::kLeading;
  switch (config.kind) {
    case SamplerKind::kDdim:
    case SamplerKind::kDdpm:
    case SamplerKind::kPndm: {
      const int first = (steps - 1) * (trained / steps) + config.steps_offset;
      if (leading && first >= trained) {
        refuse(
            fmt::format("with steps_offset = {} in {} they begin at time {}, and the model was "
                        "trained with times below {}: ask for fewer",
                        config.steps_offset, config.file, first, trained));
      }
      return;
    }
    case SamplerKind::kDpmSolverMultistep:
    case SamplerKind::kUniPc:
      if (config.sigma_spacing == SigmaSpacing::kSchedule && steps == trained &&
          config.timestep_spacing != TimestepSpacing::kTrailing) {
        refuse(fmt::format("the times of this sampler would repeat: {} are the most for {}",
                           trained - 1, config.file));
      }
      return;
    case SamplerKind::kLcm:
      if (steps > config.original_inference_steps) {
        refuse(fmt::format("original_inference_steps in {} is {}, the most that there are",
                           config.file, config.original_inference_steps));
      }
      return;
    case SamplerKind::kFlowMatchEuler:
      if (steps == 1 && config.shift_terminal.value_or(0) != 0) {
        refuse(
            fmt::format("the only noise level is 1, and shift_terminal in {} asks for one that "
                        "ends at {}: ask for more",
                        config.file, number_text(*config.shift_terminal)));
      }
      return;
    case SamplerKind::kEulerDiscrete:
    case SamplerKind::kEulerAncestral:
    case SamplerKind::kUser:
      return;
  }
}

std::optional<int> given_steps(const SchedulerConfig& config, const SamplerSettings& settings) {
  if (settings.eta != 0 && config.kind != SamplerKind::kDdim) {
    refuse_setting("eta is " + number_text(settings.eta) + ", but " +
                   std::string(short_name(config.kind)) + " has none: only ddim does");
  }
  if (!settings.timesteps.empty()) return steps_of_timesteps(config, settings.timesteps);
  if (!settings.sigmas.empty()) return steps_of_sigmas(config, settings.sigmas);
  return std::nullopt;
}

void check_sampler_fits(const SchedulerSpec& spec, const std::string& name) {
  const bool chosen = follows_flow(scheduler_config_for(spec, name));
  const bool known =
      is_own_sampler(spec.class_name) || user_models().sampler_of(spec.class_name) != nullptr;
  // None of diffusers' other schedulers is one for flows.
  const bool own = known && follows_flow(scheduler_config_for(spec, ""));
  if (own != chosen) refuse_misfit(spec, name, chosen);
}

}  // namespace troupe::spec
