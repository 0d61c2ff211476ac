#include "client/listener.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

namespace troupe::client {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::chrono::seconds kLoopbackAnswers{1};  // at once, but for a full backlog

struct Probe : std::enable_shared_from_this<Probe> {
  Probe(asio::io_context& io, std::function<void(const std::string&)> missing_)
      : resolver(io), socket(io), missing(std::move(missing_)) {}

  void resolve(const std::string& host, const std::string& port) {
    resolver.async_resolve(host, port,
                           [self = shared_from_this()](const boost::system::error_code& error,
                                                       const tcp::resolver::results_type& found) {
                             if (error == asio::error::host_not_found)
                               return self->missing("no host of that name");
                             if (!error) self->connect(found);
                           });
  }
  template <class Endpoints>
  void connect(const Endpoints& endpoints) {
    asio::async_connect(
        socket, endpoints,
        [self = shared_from_this()](const boost::system::error_code& error, const tcp::endpoint&) {
          boost::system::error_code ignored;
          self->socket.close(ignored);
          if (error == asio::error::connection_refused || error == asio::error::host_unreachable ||
              error == asio::error::network_unreachable)
            self->missing(std::strerror(error.value()));
        });
  }

  tcp::resolver resolver;
  tcp::socket socket;
  std::function<void(const std::string&)> missing;
};

}  // namespace

std::string listener_missing(const control::Endpoint& endpoint) {
  if (!endpoint.ipc) {
    asio::io_context io;
    std::string missing;
    watch_for_missing_listener(io, endpoint, [&](const std::string& why) { missing = why; });
    io.run_for(kLoopbackAnswers);
    return missing;
  }
  const std::string path = endpoint.path.string();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::strerror(ENAMETOOLONG);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (probe < 0) return "";
  const int cause =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0
                                                                                         : errno;
  ::close(probe);
  const bool final =
      cause == ENOENT || cause == ECONNREFUSED || cause == EACCES || cause == ENOTDIR;
  return final ? std::strerror(cause) : "";
}

void watch_for_missing_listener(asio::io_context& io, const control::Endpoint& endpoint,
                                std::function<void(const std::string&)> missing) {
  std::string host = endpoint.host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto probe = std::make_shared<Probe>(io, std::move(missing));
  boost::system::error_code not_numeric;
  const auto address = asio::ip::make_address(host, not_numeric);
  if (not_numeric) {
    probe->resolve(host, std::to_string(endpoint.port));
  } else {
    probe->connect(std::array{tcp::endpoint(address, endpoint.port)});
  }
}

}  // namespace troupe::client
