#pragma once
#include <memory>

#include "models/image/clip_writer.h"

namespace troupe::models {

/// H.264 in MP4, by OpenH264 and a writer of our own, the index before the frames, so that players
/// begin while it comes. Of an odd size the last row or column is there twice. Throws
/// std::runtime_error where the encoder does not begin, and for frames beyond H.264's level 5.2.
std::unique_ptr<ClipWriter> mp4_writer(const ClipShape& shape);

}  // namespace troupe::models
