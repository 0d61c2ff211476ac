#pragma once
#include <optional>
#include <string>
#include <zmq.hpp>

#include "transport/control/keys.h"

namespace troupe::control {

/// Sees why a socket that is connecting is not let in, which ZeroMQ itself would try for ever in
/// silence. Asked, not driven: it needs no loop of its own.
class HandshakeWatch {
 public:
  /// `socket` must be about to connect to `endpoint`, with `keys` or without, and outlive this.
  HandshakeWatch(zmq::context_t& context, zmq::socket_t& socket, std::string endpoint,
                 const std::optional<ClientKeys>& keys);
  ~HandshakeWatch();
  HandshakeWatch(const HandshakeWatch&) = delete;
  HandshakeWatch& operator=(const HandshakeWatch&) = delete;

  /// Returns what keeps the two ends apart and what to do about it, in one line; nothing while the
  /// connection may still work. Never blocks.
  std::optional<std::string> obstacle();
  /// Returns whether somebody took the connection, whatever became of it; by what `obstacle` has
  /// seen.
  bool reached() const { return reached_; }

 private:
  std::string not_own() const;

  zmq::socket_t& socket_;
  std::string endpoint_;
  bool has_keys_;
  bool own_users_;
  std::string origin_;
  zmq::socket_t events_;
  int hung_up_ = 0;
  bool reached_ = false;
};

}  // namespace troupe::control
