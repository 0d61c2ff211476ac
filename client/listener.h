#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>

#include "transport/control/endpoint.h"

namespace troupe::client {

// ZeroMQ tries again and again where nobody listens. These ask the system itself, once, so that a
// client is told at once.

/// Returns why nobody can be at an ipc endpoint, or at one on a loopback address ("Connection
/// refused"), or nothing.
std::string listener_missing(const control::Endpoint& endpoint);

/// Calls `missing` on the loop when the host of a tcp endpoint does not exist, or nobody is at its
/// port. If somebody answers there, or nobody says no, `missing` is never called.
void watch_for_missing_listener(boost::asio::io_context& io, const control::Endpoint& endpoint,
                                std::function<void(const std::string& why)> missing);

}  // namespace troupe::client
