#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "transport/control/types.h"
#include "transport/wire/mux_frames.h"

namespace troupe::control {

struct RelayOptions {
  std::string endpoint;                              // to listen on; ipc
  std::chrono::microseconds pause{1000};             // between two messages to the server
  std::size_t max_queued_bytes_of_all = 512u << 20;  // more ends the link that reads least
  SocketOptions socket;
};

/// Stands between a server and the processes of another host: their connections end here, and one
/// link, the host's own, carries all their frames, many in one message. It understands no frame:
/// hello, sequence numbers, heartbeats and goodbye are between the process and the server, as if it
/// were connected there.
///
/// Threads as in Server.
class Relay {
 public:
  /// Binds; throws what bind_endpoint throws. `send`: over the link that carries.
  Relay(boost::asio::io_context& io, RelayOptions options,
        std::function<void(const wire::MuxFrames&)> send);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  const std::string& endpoint() const;
  /// Hands on what has come over the link that carries. Throws WireError.
  void take(wire::MuxFrames carried);
  /// Links that it carries.
  std::size_t links() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::control
