#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <zmq.hpp>

#include "base/files.h"

namespace troupe::control {

/// An endpoint taken apart: `ipc:///folder/name` or `tcp://host:port` (host may be [::1],
/// localhost, *).
struct Endpoint {
  std::string text;  // as ZeroMQ takes it
  bool ipc = false;
  bool ipv6 = false;
  std::filesystem::path path;  // ipc
  std::string host;            // tcp
  std::uint16_t port = 0;

  bool loopback() const;
};

/// Throws std::runtime_error: `[control] ENDPOINT: why`.
Endpoint parse_endpoint(const std::string& text);

/// A running process has the endpoint.
class EndpointInUse : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Binds and returns the real endpoint. An ipc folder is made with mode 0700 if it is missing, and
/// refused if it is not the user's own or open to others; the socket file of a dead process is
/// replaced, that of a live one is not. Throws std::runtime_error, one line naming endpoint and
/// cause, EndpointInUse where that is the cause. With `open_to_others` false, tcp is refused unless
/// the address is a numeric loopback one.
std::string bind_endpoint(zmq::socket_t& socket, const std::string& endpoint, bool open_to_others);

/// A fresh folder that only its owner may enter, for ipc sockets. Removed with everything in it at
/// the end.
class IpcFolder {
 public:
  /// Makes the folder under $XDG_RUNTIME_DIR or the temporary folder. Throws std::runtime_error.
  IpcFolder();
  ~IpcFolder();
  IpcFolder(const IpcFolder&) = delete;
  IpcFolder& operator=(const IpcFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string endpoint(const std::string& name) const { return "ipc://" + (path_ / name).string(); }

 private:
  std::filesystem::path path_;
  FileHandle alive_;
};

/// Returns the endpoint of a controller's blob channel from that of its control plane: `.blobs`
/// beside an ipc socket, the next port of a tcp one. Throws std::runtime_error when `control` is no
/// endpoint or the last port.
std::string blob_endpoint_of(const std::string& control);

/// The process that listens on an ipc socket.
struct ListenerProcess {
  pid_t pid = 0;
  bool stopped = false;  // by SIGSTOP, SIGTSTP or a debugger
};

/// Returns the process that listens there, whether it answers or not; nothing where the system does
/// not tell: over tcp, for a process in another PID namespace, or where nobody listens. Never
/// blocks.
std::optional<ListenerProcess> listener_process(const Endpoint& endpoint);

/// Returns the listening process in words: "process 77, which is stopped (`kill -CONT 77` lets it
/// go on)"; if it is not stopped "process 77" and `otherwise`, if it is unknown `otherwise` alone.
std::string listener_text(const std::string& endpoint, const std::string& otherwise = {});

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
