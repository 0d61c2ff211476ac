#include "transport/tensor/shm.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <system_error>
#include <thread>

namespace troupe::tensor::shm {
namespace {

/// Bytes between two publications of a long write or read, so that both ends copy at once.
constexpr std::size_t kStride = 128u << 10;

struct Cursor {
  Part first;
  Part second;

  std::size_t left() const { return first.size + second.size; }

  /// The next piece of at most `limit` bytes.
  Part take(std::size_t limit) {
    Part& part = first.size > 0 ? first : second;
    const Part piece{part.data, std::min(part.size, limit)};
    part.data += piece.size;
    part.size -= piece.size;
    return piece;
  }
};

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

std::size_t Ring::room() const {
  const std::uint64_t used = control_->written.load(std::memory_order_relaxed) -
                             control_->read.load(std::memory_order_seq_cst);
  if (used > capacity_)
    throw TransferError(Failure::mismatch, -1, "the peer damaged the shared ring");
  return capacity_ - used;
}

std::size_t Ring::available() const {
  const std::uint64_t used = control_->written.load(std::memory_order_seq_cst) -
                             control_->read.load(std::memory_order_relaxed);
  if (used > capacity_)
    throw TransferError(Failure::mismatch, -1, "the peer damaged the shared ring");
  return used;
}

bool Ring::empty() const {
  return available() == 0;
}

void Ring::publish(std::uint64_t written, Doorbell& reader) {
  control_->written.store(written, std::memory_order_seq_cst);
  if (control_->data_wanted.load(std::memory_order_seq_cst) != 0 &&
      control_->data_wanted.exchange(0) != 0)
    reader.ring();
}

std::size_t Ring::write(Part first, Part second, Doorbell& reader) {
  Cursor cursor{first, second};
  std::size_t total = 0;
  std::size_t unpublished = 0;
  std::uint64_t written = control_->written.load(std::memory_order_relaxed);
  std::size_t free = room();
  while (cursor.left() > 0) {
    if (free == 0) {
      if (unpublished > 0) publish(written, reader);
      unpublished = 0;
      control_->space_wanted.store(std::min(cursor.left(), capacity_ / 2));
      free = room();
      if (free == 0) return total;
      control_->space_wanted.store(0);
    }
    const std::size_t at = written & (capacity_ - 1);
    const Part piece = cursor.take(std::min({free, capacity_ - at, kStride}));
    std::memcpy(data_ + at, piece.data, piece.size);
    written += piece.size;
    unpublished += piece.size;
    total += piece.size;
    free -= piece.size;
    if (unpublished >= kStride || cursor.left() == 0) {
      publish(written, reader);
      unpublished = 0;
      free = room();
    }
  }
  return total;
}

std::size_t Ring::read(Part first, Part second, Doorbell& writer) {
  Cursor cursor{first, second};
  std::size_t total = 0;
  std::uint64_t read = control_->read.load(std::memory_order_relaxed);
  std::size_t ready = available();
  while (cursor.left() > 0) {
    if (ready == 0) {
      control_->data_wanted.store(1);
      ready = available();
      if (ready == 0) return total;
      control_->data_wanted.store(0);
    }
    const std::size_t at = read & (capacity_ - 1);
    const Part piece = cursor.take(std::min({ready, capacity_ - at, kStride}));
    std::memcpy(piece.data, data_ + at, piece.size);
    read += piece.size;
    total += piece.size;
    control_->read.store(read, std::memory_order_seq_cst);
    const std::uint64_t wanted = control_->space_wanted.load(std::memory_order_seq_cst);
    ready = available();
    if (wanted != 0 && capacity_ - ready >= wanted && control_->space_wanted.exchange(0) != 0)
      writer.ring();
  }
  return total;
}

RingStream::RingStream(Mapping mapping, std::size_t capacity, bool first_end, Doorbell peer)
    : mapping_(std::move(mapping)),
      peer_(std::move(peer)),
      out_(mapping_.data() + (first_end ? 0 : Ring::bytes_for(capacity)), capacity),
      in_(mapping_.data() + (first_end ? Ring::bytes_for(capacity) : 0), capacity) {}

std::size_t RingStream::write(Part first, Part second) {
  return peer_closed_ ? kEnded : out_.write(first, second, peer_);
}

std::size_t RingStream::read(Part first, Part second) {
  if (peer_closed_ && in_.empty()) return kEnded;
  return in_.read(first, second, peer_);
}

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
