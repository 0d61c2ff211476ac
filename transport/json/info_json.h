#pragma once
#include <nlohmann/json.hpp>

#include "troupe/client.h"

namespace troupe {

/// Returns an actor as `troupe status --json`, the console and HTTP tell it; null is what is not
/// known.
nlohmann::json to_json(const ActorInfo& actor);

/// Returns the bytes; null for 0, which means that they are not known, as for actors of other
/// hosts.
nlohmann::json known_bytes(std::uint64_t bytes);

}  // namespace troupe
