#include "controller/app/endpoints.h"

#include <boost/asio/ip/address.hpp>

#include "base/format.h"
#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"

namespace troupe::cluster {
namespace {

/// Number of unread messages, of up to a MiB each, that may lie in ZeroMQ for a peer, and of it:
/// they are bounded in no other way.
constexpr int kUnread = 64;

/// Makes the guard of the keys that clients must have; null where no keys are asked for.
std::shared_ptr<control::Guard> make_guard(boost::asio::io_context& io,
                                           const ClusterOptions& options,
                                           const control::ServerOptions& server,
                                           control::Refusals& refusals) {
  const auto endpoint = control::parse_endpoint(server.endpoint);
  const bool own = options.keys.empty();
  // Beyond this machine without keys is refused when it binds, unless that is what is wanted.
  if (endpoint.ipc || (own && (options.insecure || !endpoint.loopback()))) return nullptr;
  const control::KeyFolder keys = own ? control::own_keys() : control::KeyFolder(options.keys);
  if (!own) keys.clients();  // throws where nobody could come in
  // Of this user's own keys the file may go with his session, and the cluster goes on.
  control::AllowList allowed(own ? "" : keys.clients_file());
  if (own) allowed.add(keys.client().own.public_key, "default", control::ClientRole::operate);
  auto guard = control::Guard::open(io, server.socket.context, keys.server(), allowed);
  guard->on_refused(
      [&refusals](const std::string& who, const std::string& why) { refusals.add(who, why); });
  return guard;
}

}  // namespace

Endpoints::Endpoints(boost::asio::io_context& io, const ClusterOptions& options,
                     control::BlobStore& blobs, control::Refusals& refusals,
                     const std::string& journal)
    : tensor_host_(options.tensor_host) {
  if (options.listen.empty()) folder_.emplace();
  control::ServerOptions server;
  server.endpoint = options.listen.empty() ? folder_->endpoint("control.sock") : options.listen;
  server.software = "troupe " TROUPE_VERSION;
  server.insecure = options.insecure;
  if (!journal.empty()) server.attributes["journal"] = journal;
  server.attributes["jobs"] =
      journal.empty() ? fmt::format("{:016x}", control::random_incarnation()) : journal;
  server.socket.context = control::make_context();
  server.socket.high_water_mark = kUnread;
  server.guard = guard_ = make_guard(io, options, server, refusals);
  auto servers = control::bind_servers(io, server, blobs);
  server_ = std::move(servers.control);
  blob_server_ = std::move(servers.blobs);
  socket_file_ = SocketFile(server_->endpoint());
  blob_socket_file_ = SocketFile(blob_server_->endpoint());
}

std::string Endpoints::issue_keys(const std::string& name, control::ClientRole role) {
  return guard_ ? control::to_text(guard_->issue(name, role)) : "";
}

std::string Endpoints::tensor_host() const {
  if (!tensor_host_.empty()) return tensor_host_;
  const auto listens = control::parse_endpoint(server_->endpoint());
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(listens.host, error);
  return listens.ipc || error || address.is_unspecified() ? "" : listens.host;
}

}  // namespace troupe::cluster
