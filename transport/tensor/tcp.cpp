#include "transport/tensor/tcp.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <system_error>

#include "transport/tensor/engine.h"
#include "transport/tensor/pair_group.h"

namespace troupe::tensor::tcp {
namespace {

/// A pair's bytes over a connected, non-blocking TCP socket, watched by the engine's io_context.
class TcpStream : public Stream {
 public:
  TcpStream(Engine& engine, UniqueFd socket);
  ~TcpStream() override;
  std::size_t write(Part first, Part second) override;
  std::size_t read(Part first, Part second) override;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

enum class Direction { in, out };

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

bool has_address(const sockaddr& entry, const boost::asio::ip::address& wanted) {
  if (entry.sa_family == AF_INET && wanted.is_v4()) {
    const auto bytes = wanted.to_v4().to_bytes();
    return std::memcmp(&reinterpret_cast<const sockaddr_in&>(entry).sin_addr, bytes.data(),
                       bytes.size()) == 0;
  }
  if (entry.sa_family == AF_INET6 && wanted.is_v6()) {
    const auto bytes = wanted.to_v6().to_bytes();
    return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(entry).sin6_addr, bytes.data(),
                       bytes.size()) == 0;
  }
  return false;
}

using Endpoint = boost::asio::ip::tcp::endpoint;
const std::string kTcpScheme = "tcp:";

void set(int socket, int level, int option, int value) {
  if (::setsockopt(socket, level, option, &value, sizeof value) != 0) throw_errno("setsockopt");
}

/// A peer whose host vanished is noticed after about ten seconds.
void tune(int socket) {
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 4);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

boost::asio::ip::address numeric(const std::string& host) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(host, error);
  if (error)
    throw std::system_error(EINVAL, std::generic_category(), "not a numeric address: " + host);
  return address;
}

Endpoint parse(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  if (!address.starts_with(kTcpScheme) || colon < kTcpScheme.size())
    throw std::system_error(EINVAL, std::generic_category(), "not a tcp address: " + address);
  unsigned port = 0;
  const char* end = address.data() + address.size();
  const auto parsed = std::from_chars(address.data() + colon + 1, end, port);
  if (parsed.ec != std::errc{} || parsed.ptr != end || port == 0 || port > 65535)
    throw std::system_error(EINVAL, std::generic_category(), "not a tcp address: " + address);
  std::string host = address.substr(kTcpScheme.size(), colon - kTcpScheme.size());
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {numeric(host), static_cast<std::uint16_t>(port)};
}

std::string print(const Endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return kTcpScheme + (endpoint.address().is_v6() ? "[" + host + "]" : host) + ":" +
         std::to_string(endpoint.port());
}

UniqueFd make_socket(const Endpoint& endpoint) {
  UniqueFd socket(::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                           IPPROTO_TCP));
  if (!socket) throw_errno("socket");
  return socket;
}

}  // namespace

std::string interface_of(const std::string& host) {
  boost::system::error_code error;
  const auto wanted = boost::asio::ip::make_address(host, error);
  ifaddrs* first = nullptr;
  if (error || ::getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(first, ::freeifaddrs);
  for (const ifaddrs* entry = all.get(); entry; entry = entry->ifa_next) {
    if (entry->ifa_addr && has_address(*entry->ifa_addr, wanted)) return entry->ifa_name;
  }
  return "";
}

class TcpDevice::Host : public PairDevice::Handshake {
 public:
  Host(Engine& engine, UniqueFd data) : engine_(engine), data_(std::move(data)) {}

  void offer(int control, Deadline deadline) override {
    tune(control);
    tune(data_.get());
    Answer answer;
    answer.accepted = 1;
    write_all(control, &answer, sizeof answer, deadline);
  }

  std::unique_ptr<Stream> complete(int control, Deadline deadline) override {
    char go = 0;
    read_all(control, &go, 1, deadline);
    return std::make_unique<TcpStream>(engine_, std::move(data_));
  }

 private:
  Engine& engine_;
  UniqueFd data_;
};

class TcpDevice::Guest : public PairDevice::Handshake {
 public:
  Guest(Engine& engine, UniqueFd data) : engine_(engine), data_(std::move(data)) {}

  void offer(int, Deadline) override {}

  std::unique_ptr<Stream> complete(int control, Deadline deadline) override {
    PairDevice::read_answer(control, {}, deadline);
    const char go = 1;
    write_all(control, &go, 1, deadline);
    return std::make_unique<TcpStream>(engine_, std::move(data_));
  }

 private:
  Engine& engine_;
  UniqueFd data_;
};

TcpDevice::TcpDevice(const DeviceOptions& options) : PairDevice(options) {
  const Endpoint wanted(numeric(options.host), options.port);
  if (wanted.address().is_unspecified())
    throw std::invalid_argument("[tensor.tcp] host " + options.host +
                                ": name one interface, so that peers can be told its address");
  UniqueFd listener = make_socket(wanted);
  set(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  const std::string name = print(wanted);
  if (::bind(listener.get(), wanted.data(), static_cast<socklen_t>(wanted.size())) != 0)
    throw_errno("binding " + name);
  if (::listen(listener.get(), 1024) != 0) throw_errno("listen");
  Endpoint bound;
  socklen_t length = static_cast<socklen_t>(bound.capacity());
  if (::getsockname(listener.get(), bound.data(), &length) != 0) throw_errno("getsockname");
  bound.resize(length);
  listen(std::move(listener), print(bound), /*same_user=*/false);
}

UniqueFd TcpDevice::dial(const std::string& address, Deadline deadline) {
  const Endpoint target = parse(address);
  UniqueFd socket = make_socket(target);
  if (::connect(socket.get(), target.data(), static_cast<socklen_t>(target.size())) != 0) {
    if (errno != EINPROGRESS) throw_errno("connecting to " + address);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd entry{socket.get(), POLLOUT, 0};
    if (::poll(&entry, 1, std::max(0, static_cast<int>(left.count()))) <= 0)
      throw std::system_error(ETIMEDOUT, std::generic_category(), "connecting to " + address);
    int error = 0;
    socklen_t length = sizeof error;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0)
      throw std::system_error(error, std::generic_category(), "connecting to " + address);
  }
  tune(socket.get());
  return socket;
}

std::unique_ptr<PairDevice::Handshake> TcpDevice::host(UniqueFd data, int) {
  return std::make_unique<Host>(engine(), std::move(data));
}

std::unique_ptr<PairDevice::Handshake> TcpDevice::guest(UniqueFd data) {
  return std::make_unique<Guest>(engine(), std::move(data));
}

}  // namespace troupe::tensor::tcp
