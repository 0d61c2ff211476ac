#include "transport/control/door_keys.h"

namespace troupe::control {

DoorKeys DoorKeys::make() {
  return {make_key_pair(), make_key_pair()};
}

std::string DoorKeys::for_callers() const {
  return to_text(ClientKeys{door.public_key, callers, ""});
}

// Three keys as well: the other side's public one, and the own pair.
std::string DoorKeys::for_door() const {
  return to_text(ClientKeys{callers.public_key, door, ""});
}

Door door_from(std::string_view text, const std::string& origin) {
  const auto keys = client_keys_from(text, origin);
  return {keys.own, keys.server_key};
}

}  // namespace troupe::control
