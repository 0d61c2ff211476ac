#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace troupe {

/// A file descriptor that closes itself.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int descriptor) : descriptor_(descriptor) {}
  ~FileHandle() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileHandle(FileHandle&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  explicit operator bool() const { return descriptor_ >= 0; }
  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// The file's bytes. Throws std::runtime_error naming the file when it cannot be read or is over
/// `limit`.
std::string read_file(const std::string& path, std::size_t limit);

/// Writes a file whole or not at all, by default for its owner only. A link or a pipe that somebody
/// has put in its way is taken away. Answers why it cannot be written, or "".
std::string write_whole(const std::filesystem::path& path, std::string_view text,
                        mode_t mode = 0600);

/// Returns why a folder is not this user's alone: "belongs to another user", "is open to other
/// users; give it mode 0700", …; nothing where it is.
inline std::optional<std::string> why_not_private(const std::filesystem::path& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return std::generic_category().message(errno);
  if (!S_ISDIR(info.st_mode)) return "is not a folder";
  if (info.st_uid != ::geteuid()) return "belongs to another user";
  if (info.st_mode & 077) return "is open to other users; give it mode 0700";
  return std::nullopt;
}

/// Opens a log that is written on, made where there is none; empty, with errno, where it is a link,
/// a pipe or a device: whoever else may write in its folder could have put that there, and opening
/// a pipe that nobody reads would wait for ever.
inline FileHandle open_log(const std::filesystem::path& file) {
  FileHandle log(::open(file.c_str(),
                        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat info {};
  if (!log || ::fstat(log.get(), &info) != 0 || S_ISREG(info.st_mode)) return log;
  errno = EINVAL;
  return {};
}

}  // namespace troupe
