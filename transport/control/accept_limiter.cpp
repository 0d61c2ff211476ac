#include "transport/control/accept_limiter.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/format.h"
#include "transport/control/descriptors.h"
#include "transport/control/endpoint.h"

namespace troupe::control {
namespace {

constexpr Milliseconds kHelloWithin{5000};
constexpr std::size_t kShareOfOne = 4;  // of one address: one in so many

PendingConnections::Bounds bounds_now() {
  const auto most = descriptor_reserve();
  return {.most = most, .most_of_one = most / kShareOfOne, .patience = kHelloWithin};
}

int plain_accept(int listener, sockaddr* address, socklen_t* length, int flags) {
  return static_cast<int>(syscall(SYS_accept4, listener, address, length, flags));
}

std::string name_of(const sockaddr_storage& address, socklen_t length) {
  if (address.ss_family == AF_UNIX) {
    const auto& local = reinterpret_cast<const sockaddr_un&>(address);
    const std::size_t room =
        length - std::min<std::size_t>(length, offsetof(sockaddr_un, sun_path));
    return "ipc:" + std::string(local.sun_path, strnlen(local.sun_path, room));
  }
  // Both families have it in the same place.
  return fmt::format("tcp:{}", ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port));
}

/// Returns the peer by which connections are counted: a process of this machine, an address, or for
/// IPv6 the network.
std::string address_of(int descriptor) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &length) != 0) return "gone";
  if (address.ss_family == AF_UNIX) {
    ucred peer{};
    socklen_t size = sizeof peer;
    getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    return fmt::format("pid {}", peer.pid);
  }
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return std::string(reinterpret_cast<const char*>(&v4), sizeof v4);
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr.s6_addr;
  const bool mapped =
      IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  return mapped ? std::string(v6 + 12, v6 + 16) : std::string(v6, v6 + 8);
}

/// 0 where it is no socket.
std::uint64_t cookie_of(int descriptor) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return 0;
  return cookie;
}

}  // namespace

std::vector<AcceptedLink> PendingConnections::came(AcceptedLink link, const std::string& address,
                                                   Clock::time_point now, const Bounds& bounds) {
  forget(link.descriptor);
  std::vector<AcceptedLink> gone;
  while (of(address) > 0 && of(address) >= bounds.most_of_one)
    gone.push_back(take_oldest(address));
  while (!links_.empty() && links_.size() >= bounds.most)
    gone.push_back(*oldest_of_most());
  const auto number = ++last_;
  by_descriptor_[link.descriptor] = number;
  by_address_[address][number] = link.descriptor;
  links_[number] = {link, address, now};
  return gone;
}

std::optional<AcceptedLink> PendingConnections::forget(int descriptor) {
  const auto found = by_descriptor_.find(descriptor);
  if (found == by_descriptor_.end()) return std::nullopt;
  const auto stranger = links_.find(found->second);
  const auto link = stranger->second.link;
  const auto neighbours = by_address_.find(stranger->second.address);
  neighbours->second.erase(found->second);
  if (neighbours->second.empty()) by_address_.erase(neighbours);
  links_.erase(stranger);
  by_descriptor_.erase(found);
  return link;
}

AcceptedLink PendingConnections::take_oldest(const std::string& address) {
  const auto link = links_.at(by_address_.at(address).begin()->first).link;
  forget(link.descriptor);
  return link;
}

std::optional<AcceptedLink> PendingConnections::oldest_of_most() {
  const auto most = std::ranges::max_element(by_address_, {},
                                             [](const auto& each) { return each.second.size(); });
  if (most == by_address_.end()) return std::nullopt;
  return take_oldest(std::string(most->first));
}

std::vector<AcceptedLink> PendingConnections::overdue(Clock::time_point now, const Bounds& bounds) {
  std::vector<AcceptedLink> gone;
  while (!links_.empty() && now - links_.begin()->second.since > bounds.patience) {
    gone.push_back(links_.begin()->second.link);
    forget(gone.back().descriptor);
  }
  return gone;
}

std::vector<AcceptedLink> PendingConnections::all() const {
  std::vector<AcceptedLink> links;
  for (const auto& [number, stranger] : links_)
    links.push_back(stranger.link);
  return links;
}

std::size_t PendingConnections::of(const std::string& address) const {
  const auto found = by_address_.find(address);
  return found == by_address_.end() ? 0 : found->second.size();
}

AcceptLimiter& AcceptLimiter::of_process() {
  // Never destroyed: ZeroMQ's threads may outlive everything else.
  static auto* const keeper = new AcceptLimiter;
  return *keeper;
}

AcceptLimiter::AcceptLimiter() : spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

void AcceptLimiter::open(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++doors_[name];
}

void AcceptLimiter::close(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (--doors_[name] == 0) doors_.erase(name);
}

bool AcceptLimiter::is_door(int listener) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) return false;
  const auto name = name_of(address, length);
  const std::lock_guard lock(mutex_);
  return doors_.contains(name);
}

int AcceptLimiter::accept(int listener, sockaddr* address, socklen_t* length, int flags) {
  const bool ours = is_door(listener);
  const int descriptor = plain_accept(listener, address, length, flags);
  if (!ours) return descriptor;
  const int error = errno;
  const std::lock_guard lock(mutex_);
  if (descriptor >= 0 &&
      static_cast<std::size_t>(descriptor) <
          descriptor_limit() - std::min(descriptor_limit(), descriptor_reserve())) {
    admit(descriptor);
    return descriptor;
  }
  if (descriptor < 0 && error != EMFILE && error != ENFILE) {
    errno = error;
    return -1;
  }
  // Somebody has to go, or nobody would ever be let in again.
  prune();
  if (const auto oldest = pending_.oldest_of_most()) end(*oldest);
  ++turned_away_;
  if (descriptor >= 0) {
    ::close(descriptor);
  } else {
    send_one_away(listener);
  }
  errno = ECONNABORTED;
  return -1;
}

void AcceptLimiter::send_one_away(int listener) {
  spare_ = FileHandle();
  { const FileHandle gone(plain_accept(listener, nullptr, nullptr, SOCK_CLOEXEC)); }
  spare_ = FileHandle(::open("/dev/null", O_RDONLY | O_CLOEXEC));
}

void AcceptLimiter::admit(int descriptor) {
  const auto bounds = bounds_now();
  const auto address = address_of(descriptor);
  if (pending_.size() >= bounds.most || pending_.of(address) >= bounds.most_of_one) prune();
  for (const auto& link :
       pending_.came({descriptor, cookie_of(descriptor)}, address, Clock::now(), bounds))
    end(link);
}

/// Forgets pending connections that left by themselves.
void AcceptLimiter::prune() {
  for (const auto& link : pending_.all())
    if (cookie_of(link.descriptor) != link.cookie) pending_.forget(link.descriptor);
}

void AcceptLimiter::end(const AcceptedLink& link) {
  // ZeroMQ may close it at any moment, and its number be given to another: a second descriptor
  // stays what it is.
  const FileHandle own(fcntl(link.descriptor, F_DUPFD_CLOEXEC, 0));
  const int descriptor = own ? own.get() : link.descriptor;  // none may be left
  if (cookie_of(descriptor) != link.cookie) return;
  ++turned_away_;
  shutdown(descriptor, SHUT_RDWR);
}

std::optional<AcceptedLink> AcceptLimiter::greeted(int descriptor) {
  const std::lock_guard lock(mutex_);
  return pending_.forget(descriptor);
}

void AcceptLimiter::parted(const AcceptedLink& link) {
  const std::lock_guard lock(mutex_);
  if (link.cookie != 0 && cookie_of(link.descriptor) == link.cookie) admit(link.descriptor);
}

void AcceptLimiter::expire() {
  const std::lock_guard lock(mutex_);
  for (const auto& link : pending_.overdue(Clock::now(), bounds_now()))
    end(link);
}

WatchedEndpoint::WatchedEndpoint(const std::string& text) {
  const auto endpoint = parse_endpoint(text);
  name_ = endpoint.ipc ? "ipc:" + endpoint.path.string() : fmt::format("tcp:{}", endpoint.port);
  AcceptLimiter::of_process().open(name_);
}

WatchedEndpoint::~WatchedEndpoint() {
  if (!name_.empty()) AcceptLimiter::of_process().close(name_);
}

}  // namespace troupe::control
