#include "models/spec/scheduler_readers.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "base/format.h"

namespace troupe::spec {
namespace {

/// Largest number of training steps. Schedules are computed when a job is submitted, and some
/// search all training steps in each of the run's.
constexpr int kMostTimesteps = 10000;

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

void read_sigmas(const ConfigReader& in, SchedulerConfig& c) {
  const bool karras = flag(in, "use_karras_sigmas", false);
  const bool exponential = flag(in, "use_exponential_sigmas", false);
  const bool beta = flag(in, "use_beta_sigmas", false);
  if (karras && exponential) {
    in.refuse("use_exponential_sigmas", "excludes use_karras_sigmas = true");
  }
  if (beta && (karras || exponential)) {
    in.refuse("use_beta_sigmas", "excludes use_karras_sigmas and use_exponential_sigmas = true");
  }
  if (beta) c.sigma_spacing = SigmaSpacing::kBeta;
  if (karras) c.sigma_spacing = SigmaSpacing::kKarras;
  if (exponential) c.sigma_spacing = SigmaSpacing::kExponential;
  c.final_sigma_zero =
      choice(in, "final_sigmas_type", true, {{"zero", true}, {"sigma_min", false}});
}

// Flow matching's noise levels in a scheduler that has others as well.
void read_flow_sigmas(const ConfigReader& in, SchedulerConfig& c) {
  refuse_flag(in, "use_dynamic_shifting");
  const bool flow = flag(in, "use_flow_sigmas", false);
  if (flow && c.sigma_spacing != SigmaSpacing::kSchedule) {
    in.refuse("use_flow_sigmas", "excludes other spacings of sigmas");
  }
  if (flow) c.sigma_spacing = SigmaSpacing::kFlow;
  c.flow_shift = finite(in, "flow_shift", 1.0);
  if (!(c.flow_shift > 0)) in.refuse("flow_shift", "must be above 0");
  if (flow != (c.prediction_type == PredictionType::kFlow)) {
    in.refuse(flow ? "use_flow_sigmas" : "prediction_type",
              "needs prediction_type = flow_prediction and use_flow_sigmas = true together");
  }
}

void read_sigma_range(const ConfigReader& in, SchedulerConfig& c) {
  for (auto [key, out] : {std::pair{"sigma_min", &c.sigma_min}, {"sigma_max", &c.sigma_max}}) {
    *out = in.optional_number(key);
    if (*out && !(std::isfinite(**out) && **out > 0)) in.refuse(key, "must be above 0 and finite");
  }
}

void read_thresholding(const ConfigReader& in, SchedulerConfig& c) {
  c.thresholding = flag(in, "thresholding", false);
  c.dynamic_thresholding_ratio = finite(in, "dynamic_thresholding_ratio", 0.995);
  if (c.dynamic_thresholding_ratio < 0 || c.dynamic_thresholding_ratio > 1) {
    in.refuse("dynamic_thresholding_ratio", "is outside 0..1");
  }
  c.sample_max_value = finite(in, "sample_max_value", 1.0);
}

}  // namespace

void read_common(const ConfigReader& in, SchedulerConfig& c) {
  c.num_train_timesteps = integer(in, "num_train_timesteps", 1000, 1, kMostTimesteps);
  const bool lcm = c.kind == SamplerKind::kLcm;
  if (lcm) {
    c.beta_start = 0.00085;
    c.beta_end = 0.012;
  }
  c.beta_start = finite(in, "beta_start", c.beta_start);
  c.beta_end = finite(in, "beta_end", c.beta_end);
  for (auto [key, beta] : {std::pair{"beta_start", c.beta_start}, {"beta_end", c.beta_end}}) {
    if (beta < 0 || beta >= 1) in.refuse(key, "must be in [0, 1)");
  }
  c.beta_schedule =
      choice(in, "beta_schedule", lcm ? BetaSchedule::kScaledLinear : BetaSchedule::kLinear,
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
    in.refuse("num_train_timesteps",
              fmt::format("differs from the length of trained_betas, {}", c.trained_betas.size()));
  }
  if (c.kind == SamplerKind::kPndm) {
    in.harmless({"rescale_betas_zero_snr"});
  } else {
    c.rescale_betas_zero_snr = flag(in, "rescale_betas_zero_snr", false);
  }
  c.prediction_type = choice(in, "prediction_type", PredictionType::kEpsilon,
                             {{"epsilon", PredictionType::kEpsilon},
                              {"sample", PredictionType::kSample},
                              {"v_prediction", PredictionType::kVPrediction},
                              {"flow_prediction", PredictionType::kFlow}});
  const bool leads = c.kind == SamplerKind::kDdim || c.kind == SamplerKind::kDdpm ||
                     c.kind == SamplerKind::kLcm || c.kind == SamplerKind::kPndm;
  c.timestep_spacing =
      choice(in, "timestep_spacing", leads ? TimestepSpacing::kLeading : TimestepSpacing::kLinspace,
             {{"linspace", TimestepSpacing::kLinspace},
              {"leading", TimestepSpacing::kLeading},
              {"trailing", TimestepSpacing::kTrailing}});
  c.steps_offset = integer(in, "steps_offset", 0, 0, 1000000);
}

void read_dpm(const ConfigReader& in, SchedulerConfig& c) {
  read_sigmas(in, c);
  read_thresholding(in, c);
  if (flag(in, "use_lu_lambdas", false) && c.sigma_spacing != SigmaSpacing::kKarras) {
    c.sigma_spacing = SigmaSpacing::kLu;  // exponential gives way to lu, lu to karras
  }
  read_flow_sigmas(in, c);
  c.solver_order = integer(in, "solver_order", 2, 1, 3);
  enum class Algorithm { kPlusPlus, kFirst, kStochastic };
  const auto algorithm = choice(in, "algorithm_type", Algorithm::kPlusPlus,
                                {{"dpmsolver++", Algorithm::kPlusPlus},
                                 {"deis", Algorithm::kPlusPlus},
                                 {"dpmsolver", Algorithm::kFirst},
                                 {"sde-dpmsolver++", Algorithm::kStochastic}});
  c.plus_plus = algorithm != Algorithm::kFirst;
  c.stochastic = algorithm == Algorithm::kStochastic;
  if (!c.plus_plus && c.prediction_type == PredictionType::kFlow) {
    in.refuse("prediction_type", "does not go with algorithm_type dpmsolver");
  }
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
  read_sigma_range(in, c);
}

void read_ddim(const ConfigReader& in, SchedulerConfig& c) {
  read_thresholding(in, c);
  c.clip_sample = flag(in, "clip_sample", true);
  c.clip_sample_range = finite(in, "clip_sample_range", 1.0);
  c.set_alpha_to_one = flag(in, "set_alpha_to_one", true);
}

void read_ddpm(const ConfigReader& in, SchedulerConfig& c) {
  read_thresholding(in, c);
  c.clip_sample = flag(in, "clip_sample", true);
  c.clip_sample_range = finite(in, "clip_sample_range", 1.0);
  if (in.has_value("variance_type") && in.text("variance_type") == "learned_range") {
    in.refuse(
        "variance_type",
        "needs a model that hands its variance to the sampler, and no pipeline's does: choose "
        "another sampler");
  }
  c.ddpm_variance = choice(in, "variance_type", DdpmVariance::kFixedSmall,
                           {{"fixed_small", DdpmVariance::kFixedSmall},
                            {"fixed_small_log", DdpmVariance::kFixedSmallLog},
                            {"fixed_large", DdpmVariance::kFixedLarge}});
}

void read_lcm(const ConfigReader& in, SchedulerConfig& c) {
  read_thresholding(in, c);
  c.clip_sample = flag(in, "clip_sample", false);
  c.clip_sample_range = finite(in, "clip_sample_range", 1.0);
  c.set_alpha_to_one = flag(in, "set_alpha_to_one", true);
  c.original_inference_steps =
      integer(in, "original_inference_steps", 50, 1, c.num_train_timesteps);
  c.timestep_scaling = finite(in, "timestep_scaling", 10.0);
}

void read_pndm(const ConfigReader& in, SchedulerConfig& c) {
  if (c.prediction_type == PredictionType::kSample)
    in.refuse("prediction_type", "is not supported by PNDMScheduler");
  c.set_alpha_to_one = flag(in, "set_alpha_to_one", false);
  c.skip_prk_steps = flag(in, "skip_prk_steps", false);
}

void read_unipc(const ConfigReader& in, SchedulerConfig& c) {
  read_sigmas(in, c);
  read_thresholding(in, c);
  read_flow_sigmas(in, c);
  read_sigma_range(in, c);
  c.solver_order = integer(in, "solver_order", 2, 1, 3);
  c.plus_plus = flag(in, "predict_x0", true);
  if (!c.plus_plus && c.thresholding) in.refuse("thresholding", "does nothing without predict_x0");
  if (!c.plus_plus && c.prediction_type == PredictionType::kFlow) {
    in.refuse("predict_x0", "must be true for prediction_type flow_prediction");
  }
  c.bh1 = choice(
      in, "solver_type", false,
      {{"bh2", false}, {"bh1", true}, {"midpoint", false}, {"heun", false}, {"logrho", false}});
  c.lower_order_final = flag(in, "lower_order_final", true);
  in.only("solver_p", nullptr);
  in.harmless({"disable_corrector"});
  if (in.has_value("disable_corrector")) c.disable_corrector = in.integers("disable_corrector");
  c.shift_terminal = in.optional_number("shift_terminal");
  if (c.shift_terminal && c.sigma_spacing != SigmaSpacing::kFlow) {
    in.refuse("shift_terminal", "needs use_flow_sigmas = true");
  }
}

void read_euler_ancestral(const ConfigReader& in, SchedulerConfig& c) {
  if (c.prediction_type == PredictionType::kSample) {
    in.refuse("prediction_type", "is not supported by EulerAncestralDiscreteScheduler");
  }
}

void read_flow_match(const ConfigReader& in, SchedulerConfig& c) {
  c.num_train_timesteps = integer(in, "num_train_timesteps", 1000, 1, kMostTimesteps);
  read_sigmas(in, c);
  refuse_flag(in, "invert_sigmas");
  c.prediction_type = PredictionType::kFlow;
  c.stochastic = flag(in, "stochastic_sampling", false);
  c.shift = finite(in, "shift", 1.0);
  if (!(c.shift > 0)) in.refuse("shift", "must be above 0");
  c.use_dynamic_shifting = flag(in, "use_dynamic_shifting", false);
  c.base_shift = finite(in, "base_shift", 0.5);
  c.max_shift = finite(in, "max_shift", 1.15);
  c.base_image_seq_len = integer(in, "base_image_seq_len", 256, 1, 1 << 24);
  c.max_image_seq_len = integer(in, "max_image_seq_len", 4096, 1, 1 << 24);
  if (c.base_image_seq_len == c.max_image_seq_len) {
    in.refuse("max_image_seq_len", "must differ from base_image_seq_len");
  }
  c.linear_time_shift =
      choice(in, "time_shift_type", false, {{"exponential", false}, {"linear", true}});
  c.shift_terminal = in.optional_number("shift_terminal");
  if (c.shift_terminal && !(*c.shift_terminal >= 0 && *c.shift_terminal < 1)) {
    in.refuse("shift_terminal", "must be in [0, 1)");
  }
  // Keys of the schedules with betas.
  in.harmless({"beta_start", "beta_end", "beta_schedule", "trained_betas", "prediction_type",
               "timestep_spacing", "steps_offset", "rescale_betas_zero_snr"});
}

}  // namespace troupe::spec
