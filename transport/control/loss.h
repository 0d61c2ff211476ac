#pragma once
#include <string_view>

namespace troupe::control {

/// What the texts about lost links begin or end with, on both sides.
inline constexpr std::string_view kSilent = "no sign of life";
inline constexpr std::string_view kMissing = "of its messages never arrived";
inline constexpr std::string_view kReplaced = "another controller has taken the place";

/// Whether a link was given up, by either side, although nobody closed it: for silence, or for
/// messages that never came. Its peer may live and be on its way back. `why` as Server::on_lost
/// tells it.
inline bool given_up(std::string_view why) {
  return why.find(kSilent) != why.npos || why.find(kMissing) != why.npos;
}

}  // namespace troupe::control
