#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace troupe::spec {

struct SchedulerSpec;

enum class SamplerKind {
  kDpmSolverMultistep,
  kDdim,
  kEulerDiscrete,
  kDdpm,
  kEulerAncestral,
  kUniPc,
  kFlowMatchEuler,
  kLcm,
  kPndm,
  kUser,  ///< a plugin's
};
enum class BetaSchedule { kLinear, kScaledLinear, kCosine };
enum class PredictionType { kEpsilon, kSample, kVPrediction, kFlow };
enum class TimestepSpacing { kLinspace, kLeading, kTrailing };
enum class SigmaSpacing { kSchedule, kKarras, kExponential, kBeta, kLu, kFlow };
/// Scale of DDPM's noise.
enum class DdpmVariance { kFixedSmall, kFixedSmallLog, kFixedLarge };

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

  // DPM-Solver, UniPC, Euler and flow matching
  SigmaSpacing sigma_spacing = SigmaSpacing::kSchedule;
  bool final_sigma_zero = true;

  // DPM-Solver and UniPC
  int solver_order = 2;
  /// The model's output is turned into the clean sample (DPM-Solver++, UniPC's predict_x0).
  bool plus_plus = true;
  /// Noise levels are σ of (1 - σ) x + σ noise, shifted by flow_shift.
  double flow_shift = 1.0;

  // DPM-Solver
  bool stochastic = false;  ///< sde-dpmsolver++; stochastic_sampling of flow matching
  bool heun = false;
  bool lower_order_final = true;
  bool euler_at_final = false;
  double lambda_min_clipped = -std::numeric_limits<double>::infinity();
  bool learned_variance = false;

  // UniPC
  bool bh1 = false;
  std::vector<std::int64_t> disable_corrector;

  // DDPM
  DdpmVariance ddpm_variance = DdpmVariance::kFixedSmall;

  // LCM
  int original_inference_steps = 50;
  double timestep_scaling = 10.0;

  // Flow matching
  double shift = 1.0;
  bool use_dynamic_shifting = false;
  double base_shift = 0.5;
  double max_shift = 1.15;
  int base_image_seq_len = 256;
  int max_image_seq_len = 4096;
  bool linear_time_shift = false;
  std::optional<double> shift_terminal;

  // Euler and UniPC
  bool log_linear = false;
  bool continuous_timesteps = false;
  std::optional<double> sigma_min;
  std::optional<double> sigma_max;

  // DDIM, DDPM and LCM
  bool clip_sample = true;
  double clip_sample_range = 1.0;
  bool set_alpha_to_one = true;  ///< PNDM reads it, too.

  // PNDM
  bool skip_prk_steps = false;

  // A plugin's sampler: its name, and the file's text
  std::string user_name;
  std::string user_config;
  bool user_flow = false;

  // All but Euler, PNDM and flow matching
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

/// Tasks of pipelines. diffusers has a class for each, with repairs and defaults of its own.
enum class PipelineTask { generation, from_picture, inpainting };

/// The configuration of the sampler that a request runs: the checkpoint's own where `name` is
/// empty, else the one of that name (is_sampler_name, or a diffusers class name) taking over the
/// checkpoint's keys as diffusers' `from_config` does; a name that ends with noise levels sets
/// them, as `use_karras_sigmas` and the like do there. Where `spec.mends_old_settings`,
/// steps_offset is 1, and clip_sample is false or, in inpainting, skip_prk_steps true, as the
/// constructors of Stable Diffusion's pipelines have it; in a sampler that is not the checkpoint's
/// own only if the file has the key. Throws std::invalid_argument for an unknown name and for keys
/// that a sampler other than the checkpoint's own cannot take over, std::runtime_error for what is
/// not supported of the checkpoint's own, by key.
SchedulerConfig scheduler_config_for(const SchedulerSpec& spec, const std::string& name,
                                     PipelineTask task = PipelineTask::generation);

/// Settings of a sampler that a request may have beside its name and a number of steps.
struct SamplerSettings {
  double eta = 0;                      ///< noise that DDIM's steps add
  std::vector<double> timesteps = {};  ///< timesteps in place of the sampler's own
  std::vector<double> sigmas =
      {};  ///< noise levels likewise; of Euler with the last that is reached
};

/// Checks `settings` for the sampler, and returns the number of steps that given timesteps or
/// sigmas make; nothing if none are given. Throws std::invalid_argument for settings that the
/// sampler cannot take, as diffusers' schedulers cannot, and for timesteps or sigmas that do not
/// fall.
std::optional<int> given_steps(const SchedulerConfig& config, const SamplerSettings& settings);

/// Refuses a number of steps that the sampler cannot make, as diffusers' cannot: more than the
/// model was trained with, and such whose own times leave the training's or repeat. Throws
/// std::invalid_argument.
void check_steps(const SchedulerConfig& config, int steps, const SamplerSettings& settings);

/// Refuses a sampler of noise on a model that predicts a flow, and the other way round, where the
/// checkpoint's own scheduler tells them apart: such a picture would be noise. Throws
/// std::invalid_argument, and what scheduler_config_for throws.
void check_sampler_fits(const SchedulerSpec& spec, const std::string& name);

/// The short name of the sampler that a request runs, for people: of the checkpoint's own where
/// `name` is empty. Throws as scheduler_config_for.
std::string sampler_name(const SchedulerSpec& spec, const std::string& name);

/// Name or class of one of Troupe's own samplers.
bool is_own_sampler(const std::string& name);

/// The short names that requests may use.
std::vector<std::string> sampler_names();

}  // namespace troupe::spec
