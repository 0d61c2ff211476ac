#pragma once
#include <string>
#include <string_view>

#include "web/calls.h"

namespace troupe::web {

/// A PNG as the kind of file that is asked for; as PNG it stays as it is, with its parameters.
/// Throws std::runtime_error for a PNG that cannot be read, and where the format cannot hold it.
std::string picture_file(std::string_view png, const PictureKind& kind);

}  // namespace troupe::web
