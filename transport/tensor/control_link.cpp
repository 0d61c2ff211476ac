#include "transport/tensor/control_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <cstring>

namespace troupe::tensor {

ControlLink::ControlLink(boost::asio::io_context& io, UniqueFd socket)
    : socket_(io, socket.release()) {}

void ControlLink::start(Handler handler) {
  handler_ = std::move(handler);
  listen();
}

void ControlLink::listen() {
  socket_.async_read_some(
      boost::asio::buffer(reinterpret_cast<char*>(&frame_) + filled_, sizeof frame_ - filled_),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t size) {
        self->received(error, size);
      });
}

void ControlLink::received(const boost::system::error_code& error, std::size_t size) {
  if (error == boost::asio::error::operation_aborted) return;
  if (error) {
    deliver({Notice::Kind::lost, Failure::peer_lost, -1, "the peer is gone"});
    return;
  }
  filled_ += size;
  if (filled_ == sizeof frame_) {
    filled_ = 0;
    const std::size_t length = std::min<std::size_t>(frame_.length, kMaxCause);
    deliver({static_cast<Notice::Kind>(frame_.kind), static_cast<Failure>(frame_.failure),
             frame_.culprit, std::string(frame_.cause, length)});
  }
  listen();
}

void ControlLink::deliver(const Notice& notice) {
  std::lock_guard lock(handler_mutex_);
  if (handler_) handler_(notice);
}

void ControlLink::send(const Notice& notice) {
  std::lock_guard lock(send_mutex_);
  if (std::exchange(sent_, true)) return;
  Frame frame{};
  frame.kind = static_cast<std::uint8_t>(notice.kind);
  frame.failure = static_cast<std::uint8_t>(notice.failure);
  frame.culprit = notice.culprit;
  frame.length = static_cast<std::uint16_t>(std::min(notice.cause.size(), kMaxCause));
  std::memcpy(frame.cause, notice.cause.data(), frame.length);
  // The socket's buffer is empty: nothing was sent since the rendezvous.
  [[maybe_unused]] const auto written =
      ::send(socket_.native_handle(), &frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void ControlLink::detach() {
  {
    std::lock_guard lock(handler_mutex_);
    handler_ = nullptr;
  }
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    boost::system::error_code ignored;
    self->socket_.close(ignored);
  });
}

}  // namespace troupe::tensor
