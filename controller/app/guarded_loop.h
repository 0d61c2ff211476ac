#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <string>

namespace troupe::cluster {

/// Runs `io` to its end, whatever its handlers throw: each exception goes to `on_fault` as one line
/// of text, and the loop goes on, so that what must be told and ended can be. Returns early when
/// `on_fault` throws, or after many faults.
void run_guarded(boost::asio::io_context& io,
                 const std::function<void(const std::string&)>& on_fault);

}  // namespace troupe::cluster
