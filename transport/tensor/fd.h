#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

namespace troupe::tensor {

using Deadline = std::chrono::steady_clock::time_point;

/// The deadline that lies `span` ahead of now.
template <typename Rep, typename Period>
Deadline within(std::chrono::duration<Rep, Period> span) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(span);
}

/// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Owns a shared mapping of a whole memfd.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Mapping();
  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

  /// Maps `fd`, a memfd of exactly `size` bytes that can no longer shrink.
  static Mapping of(int fd, std::size_t size);

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// An anonymous, zeroed memory file whose pages are reserved, sealed to its size.
UniqueFd make_memfd(const char* label, std::size_t size);

// The calls below work on non-blocking sockets and throw std::system_error: ETIMEDOUT past the
// deadline, ECONNRESET at the end of the stream.

void write_all(int fd, const void* data, std::size_t size, Deadline deadline);
void read_all(int fd, void* data, std::size_t size, Deadline deadline);

/// Same as `write_all` and `read_all`, over a unix socket, with descriptors attached to the first
/// byte.
void write_with_fds(int fd, const void* data, std::size_t size, std::span<const int> fds,
                    Deadline deadline);
/// Descriptors that did not come stay empty.
void read_with_fds(int fd, void* data, std::size_t size, std::span<UniqueFd> fds,
                   Deadline deadline);

/// Throws std::system_error with `errno`.
[[noreturn]] void throw_errno(const std::string& what);

}  // namespace troupe::tensor
