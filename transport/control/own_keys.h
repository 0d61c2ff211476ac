#pragma once
#include <optional>
#include <stdexcept>
#include <string>

#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"

namespace troupe::control {

/// Word in place of a folder of keys: none are wanted, whoever listens is trusted.
inline constexpr const char* kNoKeys = "none";

/// The folder of this user's own sockets, logs and keys: $XDG_RUNTIME_DIR/troupe, else
/// /tmp/troupe-UID.
std::string runtime_folder();

/// Makes the runtime folder with mode 0700. Throws std::runtime_error when it is another user's, or
/// when others may write in it: what lies there may be theirs.
std::string make_runtime_folder();

/// Returns the keys by which a cluster on a loopback address and its clients know that they are of
/// the same user, where nobody names others: `keys` in the runtime folder, made if they are not
/// there. For a cluster; a client shows only what is there. Throws std::runtime_error.
KeyFolder own_keys();

/// Advice for a client that has no keys of this user's to show, or that shows them to a server that
/// does not know them. Which of the two it is cannot be told: a server hangs up on keys that it
/// does not know or has no use for.
inline constexpr const char* kWithoutOwnKeys =
    "If it asks for keys: give --keys DIR or set TROUPE_KEYS (`troupe keys add` makes them where "
    "the cluster runs); if it was started with --insecure, --keys none trusts whoever listens "
    "there; else it is another user's";

/// Thrown when this user has no own keys: no cluster has made them.
struct NoOwnKeys : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns the keys that a client shows at this endpoint and expects there: none over ipc, whose
/// folder guards itself, nor for kNoKeys; the keys in `folder`; where that is "" this user's own on
/// a loopback address. Throws NoOwnKeys if there are no own keys, std::runtime_error for keys that
/// cannot be used, and for tcp to other machines without any: anybody could listen there.
std::optional<ClientKeys> keys_for(const Endpoint& endpoint, const std::string& folder);

}  // namespace troupe::control
