#pragma once
#include <string>

#include "troupe/client.h"

namespace troupe::web {

/// Returns latents of a .npy file's bytes: float32, little-endian, row-major, four dimensions, all
/// values finite. Throws std::runtime_error saying what is otherwise.
Latents latents_from_npy(const std::string& bytes);

}  // namespace troupe::web
