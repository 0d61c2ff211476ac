#pragma once
#include <string>

namespace troupe::cli {

/// Returns the name here of an option of diffusers, xDiT or other tools ("--steps" for
/// "--num_inference_steps"), with its value where it is one ("--offload blocks"), or "". The name
/// comes first, and ends with a space or ";". `verb`: the command; a word may mean another thing to
/// each command.
std::string name_here(std::string option, const std::string& verb);

/// Returns why another tool's option has no counterpart, and what to do instead, or "".
std::string why_not_here(std::string option, const std::string& verb);

/// Returns the name here of a command of Ray or of other tools ("troupe stop" for "down"), or "".
/// `next`: the word after it ("list" of "job list").
std::string command_here(const std::string& word, const std::string& next = "");

}  // namespace troupe::cli
