#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::control {

/// A CURVE key pair (Curve25519), each half as ZeroMQ prints it: Z85, 40 characters.
struct KeyPair {
  std::string public_key;
  std::string secret_key;
};

/// Keys that a connecting process needs to be let in, and to know the server for the right one.
struct ClientKeys {
  std::string server_key;  // the server's public half
  KeyPair own;
  std::string origin;      // where the keys come from, for errors: a folder, or "the node agent"
  bool own_users = false;  // nobody named them: those of this user's clusters on this machine
};

/// Returns what ZeroMQ lacks for CURVE; empty if nothing.
std::string why_no_curve();

/// A fresh pair. Throws std::runtime_error where ZeroMQ was built without CURVE.
KeyPair make_key_pair();

/// Returns whether `text` has the form of a key: 40 characters of Z85 that mean 32 bytes.
bool is_key(std::string_view text);

/// Returns the 32 bytes that ZeroMQ hands to its authenticator, as Z85; empty unless there are 32.
std::string key_text(std::string_view bytes);

/// Returns whether two secrets are the same, in a time that depends on their lengths alone.
bool same_secret(std::string_view a, std::string_view b);

/// Returns the keys as text for an environment variable: three keys, one blank between them.
std::string to_text(const ClientKeys& keys);
/// Throws std::runtime_error, never with a key in its text.
ClientKeys client_keys_from(std::string_view text, const std::string& origin);

/// Role of a client: what it may do. Each role may also do what those before it may.
enum class ClientRole : std::uint8_t {
  own_jobs,  // hand in jobs; see, wait for, pause and cancel what came in under the same name
  all_jobs,  // the same for everybody's jobs; actors of users' classes
  operate,   // drain, stop, inject faults, look inside actors, join as a host
};
const char* to_string(ClientRole role);
/// Returns the role that to_string names so; nothing for other words.
std::optional<ClientRole> role_from(std::string_view text);

/// A client that may come in.
struct AllowedClient {
  std::string name;  // 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot
  std::string public_key;
  ClientRole role = ClientRole::operate;
  bool operator==(const AllowedClient&) const = default;
};

/// Client that a key belongs to, as a server knows its peer. The name is "" where nobody is asked
/// for a key, and who is let in may do everything.
struct ClientUser {
  std::string name;
  ClientRole role = ClientRole::operate;
};

bool is_client_name(std::string_view name);

/// The texts of the files that a key folder holds (key_folder.h). Parsing throws
/// std::runtime_error naming the line, never with a key in its text.
inline constexpr std::size_t kMaxKeyFile = 4096;       // bytes
inline constexpr std::size_t kMaxAllowList = 1 << 20;  // bytes
std::string key_file_text(const KeyPair& pair);
std::string public_file_text(const std::string& public_key);
std::string allow_list_text(const std::vector<AllowedClient>& clients);
KeyPair parse_key_file(std::string_view text);
std::string parse_public_file(std::string_view text);
std::vector<AllowedClient> parse_allow_list(std::string_view text);

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
