#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "base/choice.h"

namespace troupe::cli {

/// Protocol by which a terminal shows pictures. half_blocks: as coloured letters, which any
/// terminal shows.
enum class PictureProtocol { of_terminal, kitty, iterm, sixel, half_blocks };

/// Time that a terminal has to answer what it shows.
inline constexpr std::chrono::milliseconds kTerminalWait{500};

/// Returns the protocol of the terminal that the environment names, or that the terminal itself
/// names when it is asked: see terminal_attributes.
PictureProtocol picture_protocol(std::chrono::milliseconds wait = kTerminalWait);

/// Returns the text that a terminal of that size shows as the picture (PNG; of an animation its
/// first frame). With sixels a letter is taken for 8 × 16 pixels. Throws std::runtime_error for a
/// PNG that cannot be read.
std::string terminal_picture(std::string_view png, PictureProtocol protocol, std::size_t columns,
                             std::size_t rows);

}  // namespace troupe::cli

namespace troupe {
template <>
inline constexpr auto kNamesOf<cli::PictureProtocol> =
    std::to_array<std::string_view>({"", "kitty", "iterm", "sixel", "half-blocks"});
}
