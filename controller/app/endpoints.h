#pragma once
#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "controller/app/cluster.h"
#include "transport/control/blob_channel.h"
#include "transport/control/endpoint.h"
#include "transport/control/server.h"
#include "transport/control/zap.h"

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

/// Endpoints of a cluster: the control link, the blob channel beside it, and the keys that are
/// asked for there.
class Endpoints {
 public:
  /// Binds. `journal`: the journal's name, for clients that hand a job in again; "" = there is
  /// none. Throws std::runtime_error, one line.
  Endpoints(boost::asio::io_context& io, const ClusterOptions& options, control::BlobStore& blobs,
            control::Refusals& refusals, const std::string& journal);

  control::Server& server() { return *server_; }
  control::BlobServer& blob_server() { return *blob_server_; }
  std::string endpoint() const { return server_->endpoint(); }
  /// True when clients, hosts and actors need keys here.
  bool is_keyed() const { return guard_ != nullptr; }
  /// Issues new keys for processes of the cluster, as text; "" where none are asked for.
  std::string issue_keys(const std::string& name, control::ClientRole role);
  /// Address at which actors' tensor planes listen for other hosts; "" = on loopback.
  std::string tensor_host() const;

 private:
  std::optional<control::IpcFolder> folder_;
  std::string tensor_host_;
  std::shared_ptr<control::Guard> guard_;
  std::unique_ptr<control::Server> server_;
  std::unique_ptr<control::BlobServer> blob_server_;
  SocketFile socket_file_;
  SocketFile blob_socket_file_;
};

}  // namespace troupe::cluster
