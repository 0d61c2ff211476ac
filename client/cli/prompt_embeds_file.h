#pragma once
#include <map>
#include <string>

#include "troupe/client.h"

namespace troupe::cli {

/// All tensors of a safetensors file, as float32 whatever their type (masks are mostly whole
/// numbers). Throws std::runtime_error naming file, tensor and cause: not readable, too large, a
/// value that is not finite.
std::map<std::string, Tensor> read_prompt_embeds(const std::string& path);

}  // namespace troupe::cli
