#pragma once
#include <string>
#include <string_view>

#include "transport/wire/session.h"

namespace troupe::control {

/// Reason for the end of a link.
struct Loss {
  wire::LinkEnd end = wire::LinkEnd::closed;
  std::string why;  // in words

  /// True if either side gave the link up although nobody closed it: for silence, or for messages
  /// that never came. The peer may live and be on its way back.
  bool given_up() const { return end == wire::LinkEnd::silent || end == wire::LinkEnd::gap; }
};

/// Beginning of texts about silent peers.
inline constexpr std::string_view kSilent = "no sign of life";

/// Returns the loss of a link whose `missing` messages never came.
inline Loss gap(std::uint64_t missing) {
  return {wire::LinkEnd::gap, std::to_string(missing) + " of its messages never arrived"};
}

}  // namespace troupe::control
