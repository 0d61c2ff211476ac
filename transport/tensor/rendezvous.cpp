#include "transport/tensor/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace troupe::tensor {
namespace {

constexpr auto kHelloLimit = std::chrono::seconds(5);
constexpr std::size_t kMaxGuests = 64;
constexpr std::size_t kMaxArrivals = 4096;

bool same_bytes(const char* a, const char* b, std::size_t size) {
  unsigned char difference = 0;
  for (std::size_t i = 0; i < size; ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

bool is_own_user(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 &&
         credentials.uid == ::geteuid();
}

bool hung_up(int socket) {
  pollfd entry{socket, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR));
}

}  // namespace

Hello Hello::make(Role role, const std::string& token, const std::string& name, int rank,
                  int size) {
  Hello hello;
  hello.role = role;
  hello.rank = static_cast<std::uint32_t>(rank);
  hello.size = static_cast<std::uint32_t>(size);
  hello.token_length = static_cast<std::uint32_t>(token.size());
  hello.name_length = static_cast<std::uint32_t>(name.size());
  std::memcpy(hello.token, token.data(), token.size());
  std::memcpy(hello.name, name.data(), name.size());
  return hello;
}

Answer Answer::refusal(const std::string& reason) {
  Answer answer;
  answer.length = static_cast<std::uint32_t>(std::min(reason.size(), sizeof answer.reason));
  std::memcpy(answer.reason, reason.data(), answer.length);
  return answer;
}

std::string Answer::text() const {
  return {reason, std::min<std::size_t>(length, sizeof reason)};
}

struct Rendezvous::Shared {
  using Key = std::tuple<std::string, int, Hello::Role>;

  Shared(boost::asio::io_context& io, UniqueFd fd, std::string secret, bool user)
      : listener(io, fd.release()), token(std::move(secret)), same_user(user) {}

  boost::asio::posix::stream_descriptor listener;
  const std::string token;
  const bool same_user;
  std::size_t guests = 0;  ///< io thread only
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<Key, Arrival> arrivals;
};

/// A connection that has not said hello yet.
struct Rendezvous::Guest {
  Guest(const boost::asio::any_io_executor& io, UniqueFd fd)
      : socket(io, fd.release()), timer(io) {}
  boost::asio::posix::stream_descriptor socket;
  boost::asio::steady_timer timer;
  Hello hello;
};

Rendezvous::Rendezvous(boost::asio::io_context& io, UniqueFd listener, std::string token,
                       bool same_user)
    : shared_(std::make_shared<Shared>(io, std::move(listener), std::move(token), same_user)) {
  accept_next(shared_);
}

Rendezvous::~Rendezvous() {
  boost::asio::post(shared_->listener.get_executor(), [shared = shared_] {
    boost::system::error_code ignored;
    shared->listener.close(ignored);
  });
}

void Rendezvous::accept_next(const std::shared_ptr<Shared>& shared) {
  shared->listener.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                              [shared](const boost::system::error_code& error) {
                                if (error) return;
                                UniqueFd socket(::accept4(shared->listener.native_handle(), nullptr,
                                                          nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
                                if (socket && shared->guests < kMaxGuests &&
                                    (!shared->same_user || is_own_user(socket.get())))
                                  greet(shared, std::move(socket));
                                accept_next(shared);
                              });
}

void Rendezvous::greet(const std::shared_ptr<Shared>& shared, UniqueFd socket) {
  auto guest = std::make_shared<Guest>(shared->listener.get_executor(), std::move(socket));
  ++shared->guests;
  guest->timer.expires_after(kHelloLimit);
  guest->timer.async_wait([guest](const boost::system::error_code& error) {
    boost::system::error_code ignored;
    if (!error) guest->socket.close(ignored);
  });
  boost::asio::async_read(guest->socket, boost::asio::buffer(&guest->hello, sizeof guest->hello),
                          [shared, guest](const boost::system::error_code& error, std::size_t) {
                            --shared->guests;
                            guest->timer.cancel();
                            if (!error) judge(shared, *guest);
                          });
}

void Rendezvous::judge(const std::shared_ptr<Shared>& shared, Guest& guest) {
  const Hello& hello = guest.hello;
  UniqueFd socket(guest.socket.release());
  std::string objection;
  if (hello.magic != Hello::kMagic)
    return;
  else if (hello.version != Hello::kVersion)
    objection = "tensor-plane version " + std::to_string(hello.version) + ", here it is " +
                std::to_string(Hello::kVersion);
  else if (hello.token_length != shared->token.size() ||
           !same_bytes(hello.token, shared->token.data(), shared->token.size()))
    objection = "the token does not match";
  else if (hello.name_length > Hello::kMaxName)
    objection = "the group's name is too long";
  if (!objection.empty()) {
    const Answer answer = Answer::refusal(objection);
    [[maybe_unused]] const auto sent =
        ::send(socket.get(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
    return;
  }
  std::lock_guard lock(shared->mutex);
  if (shared->arrivals.size() >= kMaxArrivals)
    std::erase_if(shared->arrivals,
                  [](const auto& entry) { return hung_up(entry.second.socket.get()); });
  if (shared->arrivals.size() >= kMaxArrivals) return;
  Shared::Key key{std::string(hello.name, hello.name_length), static_cast<int>(hello.rank),
                  hello.role};
  shared->arrivals.insert_or_assign(std::move(key), Arrival{std::move(socket), hello});
  shared->arrived.notify_all();
}

Rendezvous::Arrival Rendezvous::claim(const std::string& name, int rank, Hello::Role role,
                                      Deadline deadline) {
  const Shared::Key key{name, rank, role};
  std::unique_lock lock(shared_->mutex);
  for (;;) {
    const auto found = shared_->arrivals.find(key);
    if (found != shared_->arrivals.end()) {
      Arrival arrival = std::move(found->second);
      shared_->arrivals.erase(found);
      if (!hung_up(arrival.socket.get())) return arrival;
      continue;
    }
    if (shared_->arrived.wait_until(lock, deadline) == std::cv_status::timeout &&
        !shared_->arrivals.contains(key))
      throw std::system_error(ETIMEDOUT, std::generic_category(), "it did not join in time");
  }
}

}  // namespace troupe::tensor
