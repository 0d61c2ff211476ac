#pragma once
#include <filesystem>
#include <stdexcept>
#include <string>

#include <zmq.hpp>

#include "base/file_handle.h"

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

}  // namespace troupe::control
