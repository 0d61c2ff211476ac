#pragma once
#include <string>
#include <string_view>

#include "transport/wire/session.h"

namespace troupe::control {

/// How a link ended.
struct Loss {
  wire::LinkEnd end = wire::LinkEnd::closed;
  std::string why;  // in words

  /// By either side, although nobody closed it: for silence, or for messages that never came. The
  /// peer may live and be on its way back.
  bool given_up() const { return end == wire::LinkEnd::silent || end == wire::LinkEnd::gap; }
};

/// What texts about silent peers begin with.
inline constexpr std::string_view kSilent = "no sign of life";

/// Of so many messages that never came.
inline Loss gap(std::uint64_t missing) {
  return {wire::LinkEnd::gap, std::to_string(missing) + " of its messages never arrived"};
}

}  // namespace troupe::control
