#pragma once
#include <optional>
#include <string>

#include "base/file_handle.h"
#include "transport/control/endpoint.h"

namespace troupe::control {

/// The folder of a local socket, from the side of who connects: it has been looked at, and is held
/// open, so that the socket is looked for in this very folder whatever becomes of its name.
///
/// Who may write in the folder can put a socket of his own there. So it must belong to this user or
/// to root, and nobody else may write in it; the same holds for the socket, and for the process
/// that listens on it, which may have come while the folder was open to others.
class SocketFolder {
 public:
  /// Opens the folder; nothing when there is no such folder. Throws std::runtime_error, `[control]
  /// ENDPOINT: why`, when it cannot be trusted, links followed.
  static std::optional<SocketFolder> open(const Endpoint& endpoint);

  /// Checks the socket. Throws as `open` when the socket is there and somebody else's. Sends
  /// nothing. False when the socket is there and its listener cannot be told now, because there is
  /// none or its backlog is full: look again before you say a word.
  bool check_listener() const;
  /// Returns the socket's address for ZeroMQ, valid as long as the SocketFolder lives.
  const std::string& address() const { return address_; }

 private:
  SocketFolder(const Endpoint& endpoint, FileHandle folder);

  std::string endpoint_;
  std::string name_;
  std::string address_;
  FileHandle folder_;
};

}  // namespace troupe::control
