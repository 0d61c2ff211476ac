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
/// Returns the parts of "dpmsolver++-karras", and of other names with a choice of noise levels:
/// euler, unipc, sde-dpmsolver++; any other name is one part. "-karras", "-exponential" and "-beta"
/// mean what `use_karras_sigmas` and the like do in a scheduler_config.json.
NamedSampler named_sampler(const std::string& name);

/// Returns the endings of names that named_sampler takes for noise levels.
std::vector<std::string> level_suffixes();

/// Returns whether requests may use a short name: one of sampler_names(), with noise levels or
/// without.
bool is_sampler_name(const std::string& name);

/// Effect of the web UI's number eta on a sampler. none: no effect; fixed: the sampler's noise is
/// that of eta 1; any: the number says how much noise steps add.
enum class EtaUse { none, fixed, any };
/// Returns nothing for names that leave the effect open: plugins' samplers and unknown ones.
std::optional<EtaUse> eta_use(const std::string& name);

/// Returns the short name of a sampler that users of diffusers, A1111 or stable-diffusion.cpp call
/// `name` ("Euler a", "dpmpp_2m", "DPM++ 2M Karras"); any other name as it is.
std::string sampler_of_alias(const std::string& name);

}  // namespace troupe::spec
