#pragma once
#include <string>

#include "tests/process/support/tensors.h"

namespace troupe::testing {

/// A PNG file's pixels [height, width, 3]; throws when the bytes are no whole PNG.
Bytes decode_png(const std::string& png);
/// Returns all frames of a video, one below the other; of a picture its only one.
Bytes tall_picture(const std::string& clip);
/// Same as decode_png, for a file.
Bytes read_png(const std::filesystem::path& file);
/// Picture `index` of uint8 [n, height, width, 3].
Bytes picture_of(const Bytes& batch, std::int64_t index);
/// The PNG's text chunk `keyword`, uncompressed; "" when there is none.
std::string png_text(const std::string& png, const std::string& keyword);

}  // namespace troupe::testing
