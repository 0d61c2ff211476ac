#pragma once
#include <cstdint>
#include <vector>

#include "models/samplers/sampler_run.h"

namespace troupe::models {

/// NumPy's linspace in float64, both ends included; n = 1 gives `from`.
std::vector<double> linspace(double from, double to, int n);

/// NumPy's arange in float64.
std::vector<double> arange(double from, double to, double step);

/// Ties to even, as NumPy rounds.
std::vector<double> rounded(std::vector<double> values);

/// `values` at the positions `at`, linear between neighbours, held at both ends.
std::vector<double> interpolate(const std::vector<double>& at, const std::vector<float>& values);

/// Training times visited by `steps` steps, noisiest first.
///   - `last`: the training schedule is used up to here (below its length where lambdas are
///   clipped).
///   - `extra`: 1 where one time more is spread and the cleanest dropped (DPM-Solver), else 0.
///   - `whole`: linspace times are rounded (DPM-Solver, DDIM) or not (Euler).
/// Throws std::invalid_argument where trailing ones end below time 0, as diffusers' do for some
/// numbers of steps.
std::vector<double> spaced_timesteps(const spec::SchedulerConfig& config, int steps, int last,
                                     int extra, bool whole);

/// Noise levels from `max` to `min` whose 7th roots (kKarras, arXiv 2206.00364) or logarithms
/// (kExponential) are evenly spaced, or by the quantiles of the beta distribution of 0.6 and 0.6
/// (kBeta, arXiv 2407.12173). Throws std::invalid_argument for another spacing.
std::vector<double> respaced_sigmas(spec::SigmaSpacing spacing, double max, double min, int n);

/// Natural logarithms in float32.
std::vector<float> logs(const std::vector<float>& values);

/// The (fractional) training time of a noise level, linear in the logarithm.
double time_of_sigma(double sigma, const std::vector<float>& log_sigmas);

/// The same with logarithms and shares in float32, as NumPy has them of a float32 noise level.
double time_of_sigma(float sigma, const std::vector<float>& log_sigmas);

/// time_of_sigma of each.
std::vector<double> times_of_sigmas(const std::vector<double>& sigmas,
                                    const std::vector<float>& log_sigmas);

/// Returns what a run's noise levels are shifted by where the configuration says that this depends
/// on the picture's tokens (use_dynamic_shifting): the logarithm of the factor, or the factor
/// itself. Throws std::invalid_argument if there are no tokens.
double dynamic_shift(const spec::SchedulerConfig& config, const SamplerRun& run);

/// Sigmas as flow matching shifts them, in float32 or float64: towards 1, with use_dynamic_shifting
/// by `mu`, and stretched to end at shift_terminal.
std::vector<double> shifted_sigmas(const spec::SchedulerConfig& config,
                                   const std::vector<double>& sigmas, double mu, bool in_float32);

}  // namespace troupe::models
