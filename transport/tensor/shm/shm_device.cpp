#include "transport/tensor/shm/shm_device.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <system_error>
#include <thread>

#include "transport/tensor/shm/ring.h"

namespace troupe::tensor::shm {
namespace {

constexpr std::size_t kMinRing = 4096;
constexpr std::size_t kMaxRing = 1u << 30;
const std::string kShmScheme = "shm:@";

std::string random_name() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw_errno("getrandom");
  std::string name = "troupe-" + std::to_string(::getpid()) + "-";
  for (const unsigned char byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  if (name.empty() || name.size() + 1 > sizeof address.sun_path)
    throw std::system_error(EINVAL, std::generic_category(), "not a shm address");
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

}  // namespace

/// The end that makes the memory.
class ShmDevice::Host : public PairDevice::Handshake {
 public:
  Host(Doorbell& own, std::size_t capacity) : own_(own), capacity_(capacity) {}

  void offer(int control, Deadline deadline) override {
    const std::size_t size = 2 * Ring::bytes_for(capacity_);
    const UniqueFd memory = make_memfd("troupe-ring", size);
    mapping_ = Mapping::of(memory.get(), size);
    Answer answer;
    answer.accepted = 1;
    answer.ring_bytes = capacity_;
    const std::array fds{memory.get(), own_.memory_fd(), own_.event_fd()};
    write_with_fds(control, &answer, sizeof answer, fds, deadline);
  }

  std::unique_ptr<Stream> complete(int control, Deadline deadline) override {
    char go = 0;
    std::array<UniqueFd, 2> fds;
    read_with_fds(control, &go, 1, fds, deadline);
    return std::make_unique<RingStream>(std::move(mapping_), capacity_, true,
                                        Doorbell(fds[0], std::move(fds[1])));
  }

 private:
  Doorbell& own_;
  std::size_t capacity_;
  Mapping mapping_;
};

class ShmDevice::Guest : public PairDevice::Handshake {
 public:
  explicit Guest(Doorbell& own) : own_(own) {}

  void offer(int, Deadline) override {}

  std::unique_ptr<Stream> complete(int control, Deadline deadline) override {
    std::array<UniqueFd, 3> fds;
    const Answer answer = PairDevice::read_answer(control, fds, deadline);
    const std::size_t capacity = answer.ring_bytes;
    if (!std::has_single_bit(capacity) || capacity < kMinRing || capacity > kMaxRing)
      throw std::system_error(EPROTO, std::generic_category(), "a ring of impossible size");
    Mapping mapping = Mapping::of(fds[0].get(), 2 * Ring::bytes_for(capacity));
    const char go = 1;
    const std::array own{own_.memory_fd(), own_.event_fd()};
    write_with_fds(control, &go, 1, own, deadline);
    return std::make_unique<RingStream>(std::move(mapping), capacity, false,
                                        Doorbell(fds[1], std::move(fds[2])));
  }

 private:
  Doorbell& own_;
};

ShmDevice::ShmDevice(const DeviceOptions& options)
    : PairDevice(options),
      ring_bytes_(std::bit_ceil(std::clamp(options.ring_bytes, kMinRing, kMaxRing))) {
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener) throw_errno("socket");
  const std::string name = random_name();
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0)
    throw_errno("bind");
  if (::listen(listener.get(), 1024) != 0) throw_errno("listen");
  listen(std::move(listener), kShmScheme + name, /*same_user=*/true);
}

UniqueFd ShmDevice::dial(const std::string& address, Deadline deadline) {
  if (!address.starts_with(kShmScheme))
    throw std::system_error(EINVAL, std::generic_category(), "not a shm address: " + address);
  sockaddr_un target;
  const socklen_t length = abstract_address(address.substr(kShmScheme.size()), target);
  UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw_errno("socket");
  while (::connect(socket.get(), reinterpret_cast<sockaddr*>(&target), length) != 0) {
    if (errno != EAGAIN && errno != EINTR) throw_errno("connecting to " + address);
    if (std::chrono::steady_clock::now() >= deadline)
      throw std::system_error(ETIMEDOUT, std::generic_category(), "connecting to " + address);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return socket;
}

std::unique_ptr<PairDevice::Handshake> ShmDevice::host(UniqueFd, int size) {
  // What a member reserves does not grow with the group: 16 ranks make 120 pairs.
  const auto peers = std::bit_ceil(static_cast<std::size_t>(size - 1));
  return std::make_unique<Host>(engine().doorbell(), std::max(ring_bytes_ / peers, kMinRing));
}

std::unique_ptr<PairDevice::Handshake> ShmDevice::guest(UniqueFd) {
  return std::make_unique<Guest>(engine().doorbell());
}

}  // namespace troupe::tensor::shm
