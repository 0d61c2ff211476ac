#pragma once
#include <string>
#include <vector>

namespace troupe::cli {

/// How many characters must be added, taken away, changed or swapped to make `a` of `b`.
int edit_distance(const std::string& a, const std::string& b);

/// The one of `known` that `word` was probably meant to be, or "".
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// "; did you mean WORD?", or "".
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

/// What an option of diffusers, xDiT or other tools is called here ("--steps" for
/// "--num_inference_steps"), or "".
std::string name_here(std::string option);

}  // namespace troupe::cli
