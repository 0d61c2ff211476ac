#pragma once
#include <string>

namespace troupe::cli {

/// What an option of diffusers, xDiT or other tools is called here ("--steps" for
/// "--num_inference_steps"), or "".
std::string name_here(std::string option);

/// What a command of Ray or of other tools is called here ("troupe stop" for "down"), or "".
std::string command_here(const std::string& word);

}  // namespace troupe::cli
