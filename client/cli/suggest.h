#pragma once
#include <string>

namespace troupe::cli {

/// What an option of diffusers, xDiT or other tools is called here ("--steps" for
/// "--num_inference_steps"), with its value where it is one ("--offload blocks"), or "". The name
/// comes first, and ends with a space or ";". `verb`: of this command; a word may mean another
/// thing to each.
std::string name_here(std::string option, const std::string& verb);

/// Why an option of theirs has no counterpart, and what to do instead, or "".
std::string why_not_here(std::string option, const std::string& verb);

/// What a command of Ray or of other tools is called here ("troupe stop" for "down"), or "".
/// `next`: the word after it ("list" of "job list").
std::string command_here(const std::string& word, const std::string& next = "");

}  // namespace troupe::cli
