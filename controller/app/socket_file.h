#pragma once
#include <filesystem>
#include <string>

#include "transport/control/endpoint.h"

namespace troupe::cluster {

/// Takes the socket's file of an ipc endpoint away at its end. To be destroyed before the socket
/// is: as long as that lives nobody else binds there, so it is never another's file.
class SocketFile {
 public:
  SocketFile() = default;
  explicit SocketFile(const std::string& endpoint)
      : path_(control::parse_endpoint(endpoint).path) {}
  ~SocketFile() { remove(); }
  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;
  SocketFile& operator=(SocketFile&& other) noexcept {
    remove();
    path_ = std::move(other.path_);
    other.path_.clear();
    return *this;
  }

 private:
  void remove() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }

  std::filesystem::path path_;  // empty for tcp
};

}  // namespace troupe::cluster
