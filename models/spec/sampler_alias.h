#pragma once
#include <optional>
#include <string>
#include <vector>

#include "models/spec/scheduler_config.h"

namespace troupe::spec {

/// A sampler's short name in two parts.
struct NamedSampler {
  std::string sampler;
  std::optional<SigmaSpacing> levels;  // that it ends with
};
/// The parts of "dpmsolver++-karras", and of others that have a choice of noise levels: euler,
/// unipc, sde-dpmsolver++; any other name is one part. "-karras", "-exponential" and "-beta" mean
/// what `use_karras_sigmas` and the like do in a scheduler_config.json.
NamedSampler named_sampler(const std::string& name);

/// What named_sampler takes for noise levels.
std::vector<std::string> level_suffixes();

/// Whether requests may use a short name: one of sampler_names(), with noise levels or without.
bool is_sampler_name(const std::string& name);

/// What the web UI's number eta does to a sampler. none: nothing; fixed: the sampler's noise is
/// what 1 means; any: the number says how much noise steps add.
enum class EtaUse { none, fixed, any };
/// Nothing for names that leave it open: plugins' samplers and those that are not known.
std::optional<EtaUse> eta_use(const std::string& name);

/// The short name of what users of diffusers, A1111 or stable-diffusion.cpp call by this name
/// ("Euler a", "dpmpp_2m", "DPM++ 2M Karras"); any other name as it is.
std::string sampler_of_alias(const std::string& name);

}  // namespace troupe::spec
