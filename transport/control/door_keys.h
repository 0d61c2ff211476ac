#pragma once
#include <string>
#include <string_view>

#include "transport/control/keys.h"

namespace troupe::control {

/// CURVE keys of one door: of the process that listens there, and of all who may come in. Made by
/// whoever introduces them to each other, for one life of that process; they go over encrypted
/// links and in environments only.
struct DoorKeys {
  KeyPair door;
  KeyPair callers;

  /// Throws std::runtime_error where ZeroMQ was built without CURVE.
  static DoorKeys make();
  /// Returns the keys as text for client_keys_from.
  std::string for_callers() const;
  /// Returns the keys as text for door_from.
  std::string for_door() const;
};

/// Keys that the listening process needs.
struct Door {
  KeyPair own;
  std::string callers;  // public half of those who may come in
};
/// Throws std::runtime_error, never with a key in its text.
Door door_from(std::string_view text, const std::string& origin);

}  // namespace troupe::control
