#pragma once

#include <filesystem>
#include <string>

#include "models/spec/weight_index.h"

namespace troupe::spec {

/// Returns `text` in quotes on one line, whatever characters it contains.
std::string in_quotes(const std::string& text);

/// A LoRA's file that does not fit, or its tensor: std::runtime_error of one line.
[[noreturn]] void refuse_lora(const std::filesystem::path& file, const std::string& why);
[[noreturn]] void refuse_lora(const TensorEntry& entry, const std::string& why);

}  // namespace troupe::spec
