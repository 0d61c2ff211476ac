#pragma once
#include <memory>

#include "models/image/clip_writer.h"

namespace troupe::models {

/// VP9 in WebM, by libvpx and libmatroska. Throws std::runtime_error where the encoder does not
/// begin.
std::unique_ptr<ClipWriter> webm_writer(const ClipShape& shape);

}  // namespace troupe::models
