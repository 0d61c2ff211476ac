#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <stdexcept>

#include "base/error_text.h"
#include "base/file_handle.h"
#include "base/format.h"

namespace troupe {

std::string read_file(const std::string& path, std::size_t limit) {
  const auto fail = [&path](const std::string& why) -> void {
    throw std::runtime_error(path + ": " + why);
  };
  const FileHandle file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || fstat(file.get(), &info) != 0) fail(error_text(errno));
  if (!S_ISREG(info.st_mode)) fail("is not a file");
  if (static_cast<std::size_t>(info.st_size) > limit)
    fail(fmt::format("has {} bytes, at most {} are read", info.st_size, limit));
  std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got = read(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(error_text(errno));
    if (got == 0) fail("became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace troupe
