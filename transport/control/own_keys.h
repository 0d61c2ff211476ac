#pragma once
#include <optional>
#include <string>

#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"

namespace troupe::control {

/// In place of a folder of keys: none are wanted, whoever listens is trusted.
inline constexpr const char* kNoKeys = "none";

/// The folder of this user's own sockets, logs and keys: $XDG_RUNTIME_DIR/troupe, else
/// /tmp/troupe-UID.
std::string runtime_folder();

/// Makes the runtime folder with mode 0700. Throws std::runtime_error when it is another user's, or
/// when others may write in it: what lies there may be theirs.
std::string make_runtime_folder();

/// The keys by which a cluster on a loopback address and its clients know each other for the same
/// user's where nobody names others: `keys` in the runtime folder, made where they are not there.
/// Throws std::runtime_error.
KeyFolder own_keys();

/// What a client shows at this endpoint, and what it expects there: nothing over ipc, whose folder
/// guards itself, nor for kNoKeys; the keys in `folder`; where that is "" this user's own on a
/// loopback address. Throws std::runtime_error for keys that cannot be used, and for tcp to other
/// machines without any: anybody could listen there.
std::optional<ClientKeys> keys_for(const Endpoint& endpoint, const std::string& folder);

}  // namespace troupe::control
