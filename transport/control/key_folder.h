#pragma once

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/control/endpoint.h"
#include "transport/control/keys.h"

namespace troupe::control {

/// A folder of keys, mode 0700, its files 0600:
///
///   server.key  the server's pair       (where `troupe start` runs)
///   clients     who may come in         (there, too)
///   server.pub  the server's public key (where a client runs)
///   client.key  that client's pair      (there, too)
///
/// A file with a secret in it that others may read is refused; so is every file that others may
/// write or put another in the place of, and every file and folder of another user than this one
/// and root. Every member throws std::runtime_error, one line naming the file and the cause.
class KeyFolder {
 public:
  explicit KeyFolder(std::filesystem::path path) : path_(std::move(path)) {}

  /// Makes the folder with a server's pair and a client's that is allowed in as "default". What is
  /// there is overwritten only with `force`; then all clients that were allowed are out.
  void make(bool force) const;

  KeyPair server() const;
  ClientKeys client() const;
  std::vector<AllowedClient> clients() const;

  /// Lets a client in. Refused when the name or the key is there already.
  void add(const AllowedClient& client) const;
  /// Sets a client's role, which counts from its next connection on.
  void set_role(const std::string& name, ClientRole role) const;
  /// Removes a client. Links that are up stay; new ones are refused.
  void remove(const std::string& name) const;
  /// Makes a folder for a client elsewhere: the server's public key and a fresh pair. Returns the
  /// public half, which is not allowed in yet.
  std::string make_client(const std::filesystem::path& folder, bool force) const;

  std::filesystem::path clients_file() const { return path_ / "clients"; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The list of clients as a running server sees it: read again whenever the file has changed. While
/// it cannot be read, no client is allowed.
class AllowList {
 public:
  explicit AllowList(std::filesystem::path file);
  /// Lets in a key that is in no file.
  void add(std::string public_key, std::string name, ClientRole role);
  /// Returns the client that a key belongs to; nothing if the key is not allowed in.
  std::optional<AllowedClient> client_of(const std::string& public_key);

 private:
  void refresh();

  std::filesystem::path file_;
  std::vector<AllowedClient> own_;
  std::vector<AllowedClient> listed_;
  std::string seen_;  // what identifies the file's contents
};

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
