#include "transport/tensor/rendezvous.h"

#include <poll.h>
#include <sodium.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <cerrno>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <system_error>

namespace troupe::tensor {
namespace {

constexpr char kContext[] = "troupe tensor plane 2";
constexpr char kDialler = 'D';
constexpr char kListener = 'L';

Nonce fresh_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

constexpr auto kDescriptorsPause = std::chrono::milliseconds(50);
constexpr std::size_t kMaxArrivals = 4096;

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

/// Sends a message that is small enough for any socket's buffer; a peer that has filled its buffer
/// gets nothing.
template <class M>
bool send_now(int socket, const M& message) {
  return ::send(socket, &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof message);
}

}  // namespace

Hello Hello::make(Role role, const std::string& name, int rank, int size) {
  Hello hello;
  hello.role = role;
  hello.rank = static_cast<std::uint32_t>(rank);
  hello.size = static_cast<std::uint32_t>(size);
  hello.name_length = static_cast<std::uint32_t>(std::min(name.size(), kMaxName));
  hello.nonce = fresh_nonce();
  std::memcpy(hello.name, name.data(), hello.name_length);
  return hello;
}

std::optional<std::string> Hello::objection() const {
  if (version != kVersion) {
    return "tensor-plane version " + std::to_string(version) + ", here it is " +
           std::to_string(kVersion);
  }
  if (name_length == 0 || name_length > kMaxName)
    return "the group's name has an impossible length";
  if (role != Role::control && role != Role::data) return "an unknown role";
  if (rank >= size || size > 1u << 20) return "an impossible rank";
  return std::nullopt;
}

Challenge Challenge::refusal(const std::string& reason) {
  Challenge challenge;
  challenge.length = static_cast<std::uint32_t>(std::min(reason.size(), sizeof challenge.reason));
  std::memcpy(challenge.reason, reason.data(), challenge.length);
  return challenge;
}

std::string Challenge::text() const {
  return {reason, std::min<std::size_t>(length, sizeof reason)};
}

Secret::Secret(const std::string& token) {
  if (token.empty() || token.size() > kMaxToken)
    throw std::invalid_argument("[tensor] a token has 1 to " + std::to_string(kMaxToken) +
                                " bytes, this one has " + std::to_string(token.size()));
  if (sodium_init() < 0) throw std::runtime_error("[tensor] libsodium cannot be initialised");
  crypto_generichash(key_.data(), key_.size(), reinterpret_cast<const unsigned char*>(token.data()),
                     token.size(), reinterpret_cast<const unsigned char*>(kContext),
                     sizeof kContext - 1);
}

Secret::~Secret() {
  sodium_memzero(key_.data(), key_.size());
}

Mac Secret::mac(char whose, const Hello& hello, const Nonce& listener) const {
  static_assert(std::has_unique_object_representations_v<Hello>);
  Mac mac;
  crypto_generichash_state state;
  crypto_generichash_init(&state, key_.data(), key_.size(), mac.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&whose), 1);
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(&hello), sizeof hello);
  crypto_generichash_update(&state, listener.data(), listener.size());
  crypto_generichash_final(&state, mac.data(), mac.size());
  return mac;
}

Challenge Secret::challenge(const Hello& hello) const {
  Challenge challenge;
  challenge.accepted = 1;
  challenge.nonce = fresh_nonce();
  challenge.proof = mac(kListener, hello, challenge.nonce);
  return challenge;
}

bool Secret::knows(const Hello& hello, const Challenge& challenge) const {
  const Mac expected = mac(kListener, hello, challenge.nonce);
  return challenge.magic == Hello::kMagic &&
         sodium_memcmp(expected.data(), challenge.proof.data(), expected.size()) == 0;
}

Proof Secret::prove(const Hello& hello, const Challenge& challenge) const {
  return {mac(kDialler, hello, challenge.nonce)};
}

bool Secret::proven(const Hello& hello, const Challenge& challenge, const Proof& proof) const {
  const Mac expected = mac(kDialler, hello, challenge.nonce);
  return sodium_memcmp(expected.data(), proof.mac.data(), expected.size()) == 0;
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

std::optional<std::string> introduce(int socket, const Secret& secret, const Hello& hello,
                                     Deadline deadline) {
  write_all(socket, &hello, sizeof hello, deadline);
  Challenge challenge;
  read_all(socket, &challenge, sizeof challenge, deadline);
  if (!challenge.accepted) return challenge.text();
  if (!secret.knows(hello, challenge)) return "it does not know the cluster's secret";
  const Proof proof = secret.prove(hello, challenge);
  write_all(socket, &proof, sizeof proof, deadline);
  return std::nullopt;
}

/// A connection that has not proven anything yet.
struct Rendezvous::Guest {
  Guest(const boost::asio::any_io_executor& io, UniqueFd fd)
      : socket(io, fd.release()), timer(io) {}
  boost::asio::posix::stream_descriptor socket;
  boost::asio::steady_timer timer;
  Hello hello;
  Challenge challenge;
  Proof proof;
};

struct Rendezvous::Shared {
  using Key = std::tuple<std::string, int, Hello::Role>;

  Shared(boost::asio::io_context& io, UniqueFd fd, Secret known, bool user,
         std::chrono::seconds limit)
      : listener(io, fd.release()),
        pause(io),
        secret(std::move(known)),
        same_user(user),
        proof_limit(limit) {}

  boost::asio::posix::stream_descriptor listener;
  boost::asio::steady_timer pause;
  const Secret secret;
  const bool same_user;
  const std::chrono::seconds proof_limit;
  std::list<std::shared_ptr<Guest>> guests;  ///< io thread only; the oldest first
  std::mutex mutex;
  std::condition_variable arrived;
  std::map<Key, Arrival> arrivals;
  std::deque<std::string> given_up;  ///< ends of names

  bool is_given_up(const std::string& name) const {
    return std::ranges::any_of(given_up,
                               [&](const auto& suffix) { return name.ends_with(suffix); });
  }
};

Rendezvous::Rendezvous(boost::asio::io_context& io, UniqueFd listener, Secret secret,
                       bool same_user, std::chrono::seconds proof_limit)
    : shared_(std::make_shared<Shared>(io, std::move(listener), std::move(secret), same_user,
                                       proof_limit)) {
  accept_next(shared_);
}

Rendezvous::~Rendezvous() {
  boost::asio::post(shared_->listener.get_executor(), [shared = shared_] {
    boost::system::error_code ignored;
    shared->listener.close(ignored);
    shared->pause.cancel();
    for (const auto& guest : shared->guests)
      guest->socket.close(ignored);
  });
}

void Rendezvous::accept_next(const std::shared_ptr<Shared>& shared) {
  shared->listener.async_wait(
      boost::asio::posix::stream_descriptor::wait_read,
      [shared](const boost::system::error_code& error) {
        if (error) return;
        UniqueFd socket(::accept4(shared->listener.native_handle(), nullptr, nullptr,
                                  SOCK_CLOEXEC | SOCK_NONBLOCK));
        // Without a free descriptor the one that waits would be seen again at once, for ever.
        if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
          return accept_later(shared);
        if (socket && (!shared->same_user || is_own_user(socket.get())))
          greet(shared, std::move(socket));
        accept_next(shared);
      });
}

void Rendezvous::accept_later(const std::shared_ptr<Shared>& shared) {
  shared->pause.expires_after(kDescriptorsPause);
  shared->pause.async_wait([shared](const boost::system::error_code& error) {
    if (!error) accept_next(shared);
  });
}

void Rendezvous::greet(const std::shared_ptr<Shared>& shared, UniqueFd socket) {
  boost::system::error_code ignored;
  if (shared->guests.size() >= kMaxGuests) {
    shared->guests.front()->socket.close(ignored);
    shared->guests.pop_front();
  }
  auto guest = std::make_shared<Guest>(shared->listener.get_executor(), std::move(socket));
  shared->guests.push_back(guest);
  guest->timer.expires_after(shared->proof_limit);
  guest->timer.async_wait([guest](const boost::system::error_code& error) {
    boost::system::error_code closing;
    if (!error) guest->socket.close(closing);
  });
  boost::asio::async_read(guest->socket, boost::asio::buffer(&guest->hello, sizeof guest->hello),
                          [shared, guest](const boost::system::error_code& error, std::size_t) {
                            if (!error) return challenge(shared, guest);
                            guest->timer.cancel();
                            shared->guests.remove(guest);
                          });
}

void Rendezvous::challenge(const std::shared_ptr<Shared>& shared,
                           const std::shared_ptr<Guest>& guest) {
  bool goes_on = false;
  if (!guest->hello.is_foreign()) {
    const auto objection = guest->hello.objection();
    guest->challenge =
        objection ? Challenge::refusal(*objection) : shared->secret.challenge(guest->hello);
    goes_on = send_now(guest->socket.native_handle(), guest->challenge) && !objection;
  }
  if (!goes_on) {
    guest->timer.cancel();
    shared->guests.remove(guest);
    return;
  }
  boost::asio::async_read(guest->socket, boost::asio::buffer(&guest->proof, sizeof guest->proof),
                          [shared, guest](const boost::system::error_code& error, std::size_t) {
                            guest->timer.cancel();
                            shared->guests.remove(guest);
                            if (!error) admit(shared, *guest);
                          });
}

void Rendezvous::admit(const std::shared_ptr<Shared>& shared, Guest& guest) {
  if (!shared->secret.proven(guest.hello, guest.challenge, guest.proof)) return;
  UniqueFd socket(guest.socket.release());
  std::lock_guard lock(shared->mutex);
  if (shared->arrivals.size() >= kMaxArrivals)
    std::erase_if(shared->arrivals,
                  [](const auto& entry) { return hung_up(entry.second.socket.get()); });
  if (shared->arrivals.size() >= kMaxArrivals || shared->is_given_up(guest.hello.group())) return;
  Shared::Key key{guest.hello.group(), static_cast<int>(guest.hello.rank), guest.hello.role};
  shared->arrivals.insert_or_assign(std::move(key), Arrival{std::move(socket), guest.hello});
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
    if (shared_->is_given_up(name))
      throw std::system_error(ECANCELED, std::generic_category(), "it was given up");
    if (shared_->arrived.wait_until(lock, deadline) == std::cv_status::timeout &&
        !shared_->arrivals.contains(key))
      throw std::system_error(ETIMEDOUT, std::generic_category(), "it did not join in time");
  }
}

void Rendezvous::give_up(const std::string& suffix) {
  constexpr std::size_t kRemembered = 64;
  {
    std::lock_guard lock(shared_->mutex);
    shared_->given_up.push_back(suffix);
    if (shared_->given_up.size() > kRemembered) shared_->given_up.pop_front();
    // Those whose peer lives on would keep their sockets: nobody claims them any more.
    std::erase_if(shared_->arrivals,
                  [&](const auto& entry) { return std::get<0>(entry.first).ends_with(suffix); });
  }
  shared_->arrived.notify_all();
}

}  // namespace troupe::tensor
