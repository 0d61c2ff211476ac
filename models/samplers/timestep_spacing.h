#pragma once
#include <functional>
#include <vector>

#include "models/spec/scheduler_config.h"

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
std::vector<double> spaced_timesteps(const spec::SchedulerConfig& config, int steps, int last,
                                     int extra, bool whole);

/// Noise levels from `max` to `min` whose 7th roots are evenly spaced (arXiv 2206.00364).
std::vector<double> karras_sigmas(double max, double min, int n);

/// Noise levels from `max` to `min` whose logarithms are evenly spaced.
std::vector<double> exponential_sigmas(double max, double min, int n);

/// Noise levels from `max` to `min` by the quantiles of the beta distribution (0.6, 0.6)
/// (arXiv 2407.12173).
std::vector<double> beta_sigmas(double max, double min, int n);

/// One of the three above. Throws std::invalid_argument for another spacing.
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

}  // namespace troupe::models
