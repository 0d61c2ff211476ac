#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <memory>

#include "web/http_limits.h"

namespace troupe::web {

/// Begins a connection: one request after the other, with TLS where there is a context. It keeps
/// itself, and ends by itself or by ServerConnection::close.
void begin_connection(boost::asio::ip::tcp::socket socket, boost::asio::ssl::context* tls,
                      const std::shared_ptr<ServerLimits>& limits);

}  // namespace troupe::web
