#pragma once
#include <string>

namespace troupe::cli {

/// What an option of diffusers, xDiT or other tools is called here ("--steps" for
/// "--num_inference_steps"), with its value where it is one ("--offload blocks"), or "".
std::string name_here(std::string option);

/// Why an option of theirs has no counterpart, and what to do instead, or "".
std::string why_not_here(std::string option);

/// What a command of Ray or of other tools is called here ("troupe stop" for "down"), or "".
std::string command_here(const std::string& word);

}  // namespace troupe::cli
