#pragma once

#include <array>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "transport/tensor/fd.h"
#include "transport/tensor/group.h"

namespace troupe::tensor {

/// Notice that one end of a pair sends to the other beside the data.
struct Notice {
  enum class Kind : std::uint8_t {
    goodbye = 'B',  ///< the group was destroyed in good order
    failure = 'F',  ///< the group failed: why, and which rank was at fault
    lost = 'L',     ///< never sent: the connection ended without a goodbye
  };
  Kind kind = Kind::lost;
  Failure failure = Failure::peer_lost;
  int culprit = -1;
  std::string cause;
};

/// The socket beside a pair's data. It carries at most one notice each way, and its end tells that
/// the peer's process is gone.
class ControlLink : public std::enable_shared_from_this<ControlLink> {
 public:
  using Handler = std::function<void(const Notice&)>;

  ControlLink(boost::asio::io_context& io, UniqueFd socket);

  /// Begins to listen; `handler` runs on the io thread, at most once for a notice and at most once
  /// for the loss of the connection.
  void start(Handler handler);
  /// Sends a notice. Never blocks. Only the first notice goes out.
  void send(const Notice& notice);
  /// Detaches the handler: after this returns, the handler does not run any more.
  void detach();

 private:
  void listen();
  void received(const boost::system::error_code& error, std::size_t size);
  void deliver(const Notice& notice);

  static constexpr std::size_t kMaxCause = 400;
  struct Frame {
    std::uint8_t kind;
    std::uint8_t failure;
    std::uint16_t length;
    std::int32_t culprit;
    char cause[kMaxCause];
  };

  boost::asio::posix::stream_descriptor socket_;
  std::mutex send_mutex_;
  bool sent_ = false;
  std::mutex handler_mutex_;
  Handler handler_;
  Frame frame_{};
  std::size_t filled_ = 0;
};

}  // namespace troupe::tensor
