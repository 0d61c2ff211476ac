#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/control/types.h"
#include "transport/wire/mux_frames.h"

namespace troupe::control {

/// Frames of several links on their way into messages of the link that carries them.
class MuxWriter {
 public:
  /// Appends a frame of the link in `slot`. An empty frame says that the link's connection is gone.
  void add(std::uint32_t slot, std::string_view frame);
  bool empty() const { return messages_.empty(); }
  std::size_t bytes() const { return bytes_; }
  /// Takes all frames, as messages that can be sent, in order.
  std::vector<wire::MuxFrames> take();

 private:
  void put(std::uint32_t slot, bool more, std::string_view bytes);

  std::vector<wire::MuxFrames> messages_;
  std::size_t last_bytes_ = 0;  // of the last message
  std::size_t bytes_ = 0;       // of all
};

/// Puts the pieces of long frames together again.
class MuxReader {
 public:
  /// The whole frame that this entry ends, if it ends one. Throws WireError where it cannot follow
  /// the last one or the frame becomes too long.
  std::optional<std::string> take(wire::MuxFrame entry);

 private:
  std::optional<wire::MuxFrame> begun_;
};

/// Sends what is to be carried: at once after a pause, and together what comes during one. So a
/// host in full work costs its controller a message in each pause, however many actors it has.
class MuxSender {
 public:
  using Send = std::function<void(const wire::MuxFrames&)>;

  MuxSender(boost::asio::io_context& io, std::chrono::microseconds pause, Send send);
  void add(std::uint32_t slot, std::string_view frame);
  /// Sends everything that waits, now.
  void flush();

 private:
  void schedule();

  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  const std::chrono::microseconds pause_;
  Send send_;
  MuxWriter waiting_;
  Clock::time_point next_{};  // before then nothing is sent
  bool scheduled_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace troupe::control
