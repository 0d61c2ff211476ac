#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::cli {

/// How a terminal shows pictures. half_blocks: as coloured letters, which any does.
enum class PictureProtocol { kitty, iterm, half_blocks };

/// That of the terminal that the environment names.
PictureProtocol picture_protocol();

/// What a terminal of that size shows as the picture (PNG; of an animation its first frame).
/// Throws std::runtime_error for a PNG that cannot be read.
std::string terminal_picture(std::string_view png, PictureProtocol protocol, std::size_t columns,
                             std::size_t rows);

}  // namespace troupe::cli
