#pragma once
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace troupe::spec {

struct SchedulerSpec;

enum class SamplerKind { kDpmSolverMultistep, kDdim, kEulerDiscrete };
enum class BetaSchedule { kLinear, kScaledLinear, kCosine };
enum class PredictionType { kEpsilon, kSample, kVPrediction };
enum class TimestepSpacing { kLinspace, kLeading, kTrailing };
enum class SigmaSpacing { kSchedule, kKarras, kExponential, kLu };

/// scheduler_config.json as one sampler reads it; defaults are diffusers 0.42's.
struct SchedulerConfig {
  SamplerKind kind = SamplerKind::kDpmSolverMultistep;
  std::string file;  ///< Named in errors.

  int num_train_timesteps = 1000;
  double beta_start = 0.0001;
  double beta_end = 0.02;
  BetaSchedule beta_schedule = BetaSchedule::kLinear;
  std::vector<float> trained_betas;  ///< Empty: none given.
  bool rescale_betas_zero_snr = false;
  PredictionType prediction_type = PredictionType::kEpsilon;
  TimestepSpacing timestep_spacing = TimestepSpacing::kLinspace;
  int steps_offset = 0;

  // DPM-Solver and Euler
  SigmaSpacing sigma_spacing = SigmaSpacing::kSchedule;
  bool final_sigma_zero = true;

  // DPM-Solver
  int solver_order = 2;
  bool plus_plus = true;
  bool heun = false;
  bool lower_order_final = true;
  bool euler_at_final = false;
  double lambda_min_clipped = -std::numeric_limits<double>::infinity();
  bool learned_variance = false;

  // Euler
  bool log_linear = false;
  bool continuous_timesteps = false;
  std::optional<double> sigma_min;
  std::optional<double> sigma_max;

  // DDIM
  bool clip_sample = true;
  double clip_sample_range = 1.0;
  bool set_alpha_to_one = true;

  // DPM-Solver and DDIM
  bool thresholding = false;
  double dynamic_thresholding_ratio = 0.995;
  double sample_max_value = 1.0;
};

/// Reads the text of a scheduler_config.json for a sampler of `kind`, whatever class wrote it.
/// Takes Python's bare Infinity. Keys that only other diffusers schedulers read are dropped;
/// unknown keys and values that are not supported are refused: std::runtime_error with file, key
/// and value.
SchedulerConfig parse_scheduler_config(const std::string& json_text, const std::string& file,
                                       SamplerKind kind);

/// The configuration of the sampler that a request runs: the checkpoint's own where `name` is
/// empty, else the one of that name (sampler_names(), or a diffusers class name) taking over the
/// checkpoint's keys as diffusers' `from_config` does. Throws std::invalid_argument for an unknown
/// name, std::runtime_error for what is not supported, by key.
SchedulerConfig scheduler_config_for(const SchedulerSpec& spec, const std::string& name);

/// The short name of the sampler that a request runs, for people: of the checkpoint's own where
/// `name` is empty. Throws as scheduler_config_for.
std::string sampler_name(const SchedulerSpec& spec, const std::string& name);

/// The short names that requests may use.
std::vector<std::string> sampler_names();

}  // namespace troupe::spec
