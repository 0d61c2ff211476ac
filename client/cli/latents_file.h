#pragma once
#include <string>

#include "troupe/client.h"

namespace troupe::cli {

/// The tensor `latents`, float32 [n, channels, height / 8, width / 8], of a safetensors file.
/// Throws std::runtime_error naming file and cause: not readable, no such tensor, another type or
/// rank, a value that is not finite.
Latents read_latents(const std::string& path);

/// The safetensors bytes of a file with that one tensor.
std::string latents_file_bytes(const Latents& latents);

}  // namespace troupe::cli
