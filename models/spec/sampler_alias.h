#pragma once
#include <string>

namespace troupe::spec {

/// The one of sampler_names() that users of diffusers, A1111 or stable-diffusion.cpp call by this
/// name ("Euler a", "dpmpp_2m"); any other name as it is.
std::string sampler_of_alias(const std::string& name);

/// Of a name that says which noise levels it takes ("DPM++ 2M Karras") the sampler, with those of
/// the checkpoint; "" for any other name.
std::string sampler_without_levels(const std::string& name);

}  // namespace troupe::spec
