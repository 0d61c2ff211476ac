#include "models/spec/scheduler_config.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string_view>
#include <utility>

#include "models/spec/config.h"
#include "models/spec/model_spec.h"

namespace troupe::spec {
namespace {

// Null means false, as in Python; a missing key means the default.
bool flag(const ConfigReader& in, std::string_view key, bool otherwise) {
  return in.has(key) ? in.optional_boolean(key).value_or(false) : otherwise;
}

void refuse_flag(const ConfigReader& in, std::string_view key) {
  if (flag(in, key, false)) in.refuse(key, "is not supported");
}

double finite(const ConfigReader& in, std::string_view key, double otherwise) {
  const double value = in.optional_number(key).value_or(otherwise);
  if (!std::isfinite(value)) in.refuse(key, "must be finite");
  return value;
}

int integer(const ConfigReader& in, std::string_view key, int otherwise, int min, int max) {
  return static_cast<int>(in.optional_integer(key, min, max).value_or(otherwise));
}

template <class T>
T choice(const ConfigReader& in, std::string_view key, T otherwise,
         std::initializer_list<std::pair<std::string_view, T>> known) {
  if (!in.has_value(key)) {
    in.harmless({key});
    return otherwise;
  }
  const std::string value = in.text(key);
  std::string names;
  for (const auto& [name, result] : known) {
    if (value == name) return result;
    names.append(names.empty() ? "" : ", ").append(name);
  }
  in.refuse(key, "is not supported (supported: " + names + ")");
}

void read_common(const ConfigReader& in, SchedulerConfig& c) {
  c.num_train_timesteps = integer(in, "num_train_timesteps", 1000, 1, 1000000);
  c.beta_start = finite(in, "beta_start", c.beta_start);
  c.beta_end = finite(in, "beta_end", c.beta_end);
  for (auto [key, beta] : {std::pair{"beta_start", c.beta_start}, {"beta_end", c.beta_end}}) {
    if (beta < 0 || beta >= 1) in.refuse(key, "must be in [0, 1)");
  }
  c.beta_schedule = choice(in, "beta_schedule", BetaSchedule::kLinear,
                           {{"linear", BetaSchedule::kLinear},
                            {"scaled_linear", BetaSchedule::kScaledLinear},
                            {"squaredcos_cap_v2", BetaSchedule::kCosine}});
  in.harmless({"trained_betas"});
  if (in.has_value("trained_betas")) {
    for (double beta : in.numbers("trained_betas")) {
      if (!(beta >= 0 && beta < 1)) in.refuse("trained_betas", "must be in [0, 1)");
      c.trained_betas.push_back(static_cast<float>(beta));
    }
  }
  if (!c.trained_betas.empty() &&
      c.trained_betas.size() != static_cast<size_t>(c.num_train_timesteps)) {
    in.refuse("num_train_timesteps", "differs from the length of trained_betas, " +
                                         std::to_string(c.trained_betas.size()));
  }
  c.rescale_betas_zero_snr = flag(in, "rescale_betas_zero_snr", false);
  c.prediction_type = choice(in, "prediction_type", PredictionType::kEpsilon,
                             {{"epsilon", PredictionType::kEpsilon},
                              {"sample", PredictionType::kSample},
                              {"v_prediction", PredictionType::kVPrediction}});
  c.timestep_spacing =
      choice(in, "timestep_spacing",
             c.kind == SamplerKind::kDdim ? TimestepSpacing::kLeading : TimestepSpacing::kLinspace,
             {{"linspace", TimestepSpacing::kLinspace},
              {"leading", TimestepSpacing::kLeading},
              {"trailing", TimestepSpacing::kTrailing}});
  c.steps_offset = integer(in, "steps_offset", 0, 0, 1000000);
}

void read_sigmas(const ConfigReader& in, SchedulerConfig& c) {
  const bool karras = flag(in, "use_karras_sigmas", false);
  const bool exponential = flag(in, "use_exponential_sigmas", false);
  refuse_flag(in, "use_beta_sigmas");
  if (karras && exponential) {
    in.refuse("use_exponential_sigmas", "excludes use_karras_sigmas = true");
  }
  if (karras) c.sigma_spacing = SigmaSpacing::kKarras;
  if (exponential) c.sigma_spacing = SigmaSpacing::kExponential;
  c.final_sigma_zero =
      choice(in, "final_sigmas_type", true, {{"zero", true}, {"sigma_min", false}});
}

void read_thresholding(const ConfigReader& in, SchedulerConfig& c) {
  c.thresholding = flag(in, "thresholding", false);
  c.dynamic_thresholding_ratio = finite(in, "dynamic_thresholding_ratio", 0.995);
  if (c.dynamic_thresholding_ratio < 0 || c.dynamic_thresholding_ratio > 1) {
    in.refuse("dynamic_thresholding_ratio", "is outside 0..1");
  }
  c.sample_max_value = finite(in, "sample_max_value", 1.0);
}

void read_dpm(const ConfigReader& in, SchedulerConfig& c) {
  read_sigmas(in, c);
  read_thresholding(in, c);
  if (flag(in, "use_lu_lambdas", false) && c.sigma_spacing != SigmaSpacing::kKarras) {
    c.sigma_spacing = SigmaSpacing::kLu;  // exponential gives way to lu, lu to karras
  }
  refuse_flag(in, "use_flow_sigmas");
  refuse_flag(in, "use_dynamic_shifting");
  c.solver_order = integer(in, "solver_order", 2, 1, 3);
  c.plus_plus = choice(in, "algorithm_type", true,
                       {{"dpmsolver++", true}, {"deis", true}, {"dpmsolver", false}});
  c.heun = choice(
      in, "solver_type", false,
      {{"midpoint", false}, {"heun", true}, {"logrho", false}, {"bh1", false}, {"bh2", false}});
  c.lower_order_final = flag(in, "lower_order_final", true);
  c.euler_at_final = flag(in, "euler_at_final", false);
  c.lambda_min_clipped = in.optional_number("lambda_min_clipped").value_or(c.lambda_min_clipped);
  if (std::isnan(c.lambda_min_clipped)) in.refuse("lambda_min_clipped", "must be a number");
  c.learned_variance = choice(in, "variance_type", false,
                              {{"learned", true},
                               {"learned_range", true},
                               // Kinds of added noise, of which these solvers have none.
                               {"fixed_small", false},
                               {"fixed_small_log", false},
                               {"fixed_large", false},
                               {"fixed_large_log", false}});
  if (!c.plus_plus && c.final_sigma_zero) {
    in.refuse("final_sigmas_type",
              "does not go with algorithm_type dpmsolver, which needs sigma_min");
  }
}

void read_euler(const ConfigReader& in, SchedulerConfig& c) {
  read_sigmas(in, c);
  c.log_linear = choice(in, "interpolation_type", false, {{"linear", false}, {"log_linear", true}});
  c.continuous_timesteps =
      choice(in, "timestep_type", false, {{"discrete", false}, {"continuous", true}});
  for (auto [key, out] : {std::pair{"sigma_min", &c.sigma_min}, {"sigma_max", &c.sigma_max}}) {
    *out = in.optional_number(key);
    if (*out && !(std::isfinite(**out) && **out > 0)) in.refuse(key, "must be above 0 and finite");
  }
}

void read_ddim(const ConfigReader& in, SchedulerConfig& c) {
  read_thresholding(in, c);
  c.clip_sample = flag(in, "clip_sample", true);
  c.clip_sample_range = finite(in, "clip_sample_range", 1.0);
  c.set_alpha_to_one = flag(in, "set_alpha_to_one", true);
}

// Keys of the schedulers that diffusers takes to be interchangeable with ours. A file may hold any
// of them; a scheduler drops those that it does not know.
void drop_keys_of_other_schedulers(const ConfigReader& in) {
  in.harmless({"algorithm_type",
               "clip_sample",
               "clip_sample_range",
               "disable_corrector",
               "dynamic_thresholding_ratio",
               "euler_at_final",
               "final_sigmas_type",
               "flow_shift",
               "interpolation_type",
               "lambda_min_clipped",
               "lower_order_final",
               "predict_x0",
               "rho",
               "sample_max_value",
               "set_alpha_to_one",
               "shift_terminal",
               "sigma_data",
               "sigma_max",
               "sigma_min",
               "sigma_schedule",
               "skip_prk_steps",
               "solver_order",
               "solver_p",
               "solver_type",
               "thresholding",
               "time_shift_type",
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
  read_common(in, c);
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
};

std::string known_samplers_text() {
  std::string out;
  for (const auto& known : kKnownSamplers) {
    out += (out.empty() ? "" : ", ") + std::string(known.name) + " (" + known.class_name + ")";
  }
  return out;
}

}  // namespace

std::vector<std::string> sampler_names() {
  std::vector<std::string> names;
  for (const auto& known : kKnownSamplers)
    names.emplace_back(known.name);
  return names;
}

std::string sampler_name(const SchedulerSpec& spec, const std::string& name) {
  const SchedulerConfig config = scheduler_config_for(spec, name);
  const auto known = std::ranges::find(kKnownSamplers, config.kind, &KnownSampler::kind);
  const bool older = config.kind == SamplerKind::kDpmSolverMultistep && !config.plus_plus;
  return older ? "dpmsolver" : known->name;
}

SchedulerConfig scheduler_config_for(const SchedulerSpec& spec, const std::string& name) {
  const std::string& wanted = name.empty() ? spec.class_name : name;
  const KnownSampler* found = nullptr;
  for (const auto& known : kKnownSamplers) {
    if (wanted == known.name || wanted == known.class_name) found = &known;
  }
  if (!found && name.empty()) {
    throw std::runtime_error(
        "[sampler] " + spec.file.string() + ": _class_name = \"" + wanted +
        "\" is not supported; choose another sampler: " + known_samplers_text());
  }
  if (!found) {
    throw std::invalid_argument("[sampler] sampler is \"" + wanted +
                                "\": " + known_samplers_text());
  }
  SchedulerConfig config = parse_scheduler_config(spec.config, spec.file.string(), found->kind);
  if (wanted == "dpmsolver++") config.plus_plus = true;
  return config;
}

}  // namespace troupe::spec
