#pragma once
#include <string>

namespace troupe::cli {

/// What an option of diffusers, xDiT or other tools is called here ("--steps" for
/// "--num_inference_steps"), or "".
std::string name_here(std::string option);

}  // namespace troupe::cli
