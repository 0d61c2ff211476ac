#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>

#include "transport/control/endpoint.h"

namespace troupe::client {

// ZeroMQ tries again and again where nobody listens. These ask the system itself, once, so that a
// client is told at once.

/// Of an ipc endpoint, or one on a loopback address: why nobody can be there ("Connection
/// refused"), or nothing.
std::string listener_missing(const control::Endpoint& endpoint);

/// Of a tcp endpoint: calls `missing` on the loop when its host, or nobody at its port, is there.
/// Where somebody answers, or nobody says no, it is never called.
void watch_for_missing_listener(boost::asio::io_context& io, const control::Endpoint& endpoint,
                                std::function<void(const std::string& why)> missing);

}  // namespace troupe::client
