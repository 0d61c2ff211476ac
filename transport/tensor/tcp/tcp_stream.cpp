#include "transport/tensor/tcp/tcp_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>

namespace troupe::tensor::tcp {
namespace {

enum class Direction { in, out };

}  // namespace

/// Outlives the stream while a readiness handler is under way.
struct TcpStream::Shared : std::enable_shared_from_this<Shared> {
  Shared(Engine& owner, UniqueFd fd) : engine(owner), socket(owner.io(), fd.release()) {}

  /// Asks the io thread for a kick once the socket is ready.
  void arm(Direction direction) {
    std::atomic<bool>& armed = direction == Direction::in ? awaiting_input : awaiting_output;
    if (armed.exchange(true)) return;
    const auto event = direction == Direction::in
                           ? boost::asio::posix::stream_descriptor::wait_read
                           : boost::asio::posix::stream_descriptor::wait_write;
    boost::asio::post(socket.get_executor(), [self = shared_from_this(), event, &armed] {
      if (self->closed) return;
      self->socket.async_wait(event, [self, &armed](const boost::system::error_code& error) {
        if (error) return;
        armed = false;
        self->engine.kick();
      });
    });
  }

  Engine& engine;
  boost::asio::posix::stream_descriptor socket;
  std::atomic<bool> awaiting_input{false};
  std::atomic<bool> awaiting_output{false};
  bool ended_input = false;
  bool ended_output = false;
  bool closed = false;  ///< io thread only
};

TcpStream::TcpStream(Engine& engine, UniqueFd socket)
    : shared_(std::make_shared<Shared>(engine, std::move(socket))) {}

TcpStream::~TcpStream() {
  // Ends the stream at once; the descriptor goes on the io thread, where handlers may hold it.
  ::shutdown(shared_->socket.native_handle(), SHUT_WR);
  boost::asio::post(shared_->socket.get_executor(), [shared = shared_] {
    boost::system::error_code ignored;
    shared->closed = true;
    shared->socket.close(ignored);
  });
}

std::size_t TcpStream::write(Part first, Part second) {
  if (shared_->ended_output) return kEnded;
  if (shared_->awaiting_output) return 0;
  std::array<iovec, 2> parts{iovec{first.data, first.size}, iovec{second.data, second.size}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const std::size_t wanted = first.size + second.size;
  std::size_t total = 0;
  const ssize_t sent =
      ::sendmsg(shared_->socket.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent >= 0) {
    total = static_cast<std::size_t>(sent);
  } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
    shared_->ended_output = true;
    return kEnded;
  }
  if (total < wanted) shared_->arm(Direction::out);
  return total;
}

std::size_t TcpStream::read(Part first, Part second) {
  if (shared_->ended_input) return kEnded;
  if (shared_->awaiting_input) return 0;
  std::array<iovec, 2> parts{iovec{first.data, first.size}, iovec{second.data, second.size}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const std::size_t wanted = first.size + second.size;
  std::size_t total = 0;
  const ssize_t got = ::recvmsg(shared_->socket.native_handle(), &message, MSG_DONTWAIT);
  if (got > 0) {
    total = static_cast<std::size_t>(got);
  } else if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
    shared_->ended_input = true;
    return kEnded;
  }
  if (total < wanted) shared_->arm(Direction::in);
  return total;
}

}  // namespace troupe::tensor::tcp
