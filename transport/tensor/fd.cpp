#include "transport/tensor/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace troupe::tensor {
namespace {

constexpr std::size_t kMaxFds = 4;

void wait_for(int fd, short events, Deadline deadline) {
  for (;;) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero())
      throw std::system_error(ETIMEDOUT, std::generic_category(), "no answer in time");
    const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(std::min<long long>(millis, 1 << 30)));
    if (ready > 0) return;
    if (ready < 0 && errno != EINTR) throw_errno("poll");
  }
}

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK;
}

}  // namespace

void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) ::close(fd_);
}

Mapping::~Mapping() {
  if (data_) ::munmap(data_, size_);
}

Mapping Mapping::of(int fd, std::size_t size) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw_errno("fstat");
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (static_cast<std::size_t>(info.st_size) != size || seals < 0 || !(seals & F_SEAL_SHRINK))
    throw std::system_error(EPROTO, std::generic_category(), "unexpected shared memory");
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (data == MAP_FAILED) throw_errno("mmap");
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = size;
  return mapping;
}

UniqueFd make_memfd(const char* label, std::size_t size) {
  UniqueFd fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) throw_errno("memfd_create");
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) throw_errno("ftruncate");
  if (const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(size)))
    throw std::system_error(error, std::generic_category(),
                            "reserving " + std::to_string(size) + " bytes of shared memory");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw_errno("sealing shared memory");
  return fd;
}

void write_all(int fd, const void* data, std::size_t size, Deadline deadline) {
  write_with_fds(fd, data, size, {}, deadline);
}

void read_all(int fd, void* data, std::size_t size, Deadline deadline) {
  read_with_fds(fd, data, size, {}, deadline);
}

void write_with_fds(int fd, const void* data, std::size_t size, std::span<const int> fds,
                    Deadline deadline) {
  auto* bytes = static_cast<const std::byte*>(data);
  while (size > 0) {
    iovec part{const_cast<std::byte*>(bytes), size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
    if (!fds.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(fds.size_bytes());
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(fds.size_bytes());
      std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
    }
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      bytes += sent;
      size -= static_cast<std::size_t>(sent);
      fds = {};
    } else if (would_block()) {
      wait_for(fd, POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw_errno("sending");
    }
  }
}

void read_with_fds(int fd, void* data, std::size_t size, std::span<UniqueFd> fds,
                   Deadline deadline) {
  auto* bytes = static_cast<std::byte*>(data);
  std::size_t filled = 0;
  while (size > 0) {
    iovec part{bytes, size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFds * sizeof(int))> control{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got == 0) throw std::system_error(ECONNRESET, std::generic_category(), "the peer hung up");
    if (got < 0) {
      if (would_block())
        wait_for(fd, POLLIN, deadline);
      else if (errno != EINTR)
        throw_errno("receiving");
      continue;
    }
    bytes += got;
    size -= static_cast<std::size_t>(got);
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int received = -1;
        std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        UniqueFd owner(received);
        if (filled < fds.size()) fds[filled++] = std::move(owner);
      }
    }
  }
}

}  // namespace troupe::tensor
